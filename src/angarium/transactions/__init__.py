"""Transactions: pipelines of steps on node groups, with all state in Redis.

What a user's steps need is importable from here; everything else has its own module.
"""

from angarium.transactions.step import Outcome, Step

__all__ = ["Outcome", "Step"]
