"""Angarium: message delivery on Redis or Valkey, accounted for by a Spark lake."""

__version__ = "0.1.0"
