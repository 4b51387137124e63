"""The options of a Redis client: the only configuration that this package reads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Durability(StrEnum):
    MEMORY = "memory"  # Redis took it
    LOCAL = "local"  # and it is on the disk of that server
    REPLICA = "replica"  # and another server has it


@dataclass(frozen=True)
class OptionNames:
    """How the options are called where the user sets them: errors name them so."""

    url: str = "url"
    durability: str = "durability"
    home: str = "home"


NAMES = OptionNames()


@dataclass(frozen=True)
class RedisOptions:
    url: str
    """As in `url.py`."""
    home: Path | None = None
    """The folder of the embedded server; needed for the URL `embedded` only."""
    durability: Durability = Durability.MEMORY
    """A server that can't give this is refused at the start."""
    call_timeout_s: float = 5.0
    """After this time without a reply the connection is given up."""
    unavailable_timeout_s: float = 10.0
    """How long a call waits for Redis to come back."""
    connections_max: int = 8
    """To each server, for calls that need a connection to themselves."""
    client_name: str = "angarium"
    names: OptionNames = NAMES
