"""What a key is: its name, what it holds, whose it is and when it goes away."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

KeyType = Literal["string", "hash", "list", "set", "zset", "stream", "channel"]

_PLACEHOLDER = re.compile(r"\{\w+\}")


def placeholder_of(name: str) -> str | None:
    """`transaction_id` of `state:{transaction_id}`."""
    found = _PLACEHOLDER.search(name)
    return found.group()[1:-1] if found else None


class Scope(StrEnum):
    PARTITION = "partition"  # one in each partition, with its hash tag
    KEYSPACE = "keyspace"  # one in all, with the prefix only
    SERVER = "server"  # shared by all keyspaces on the server: no prefix


class Shape(NamedTuple):
    """A name taken apart, so that putting an id into it costs one concatenation."""

    head: str
    tail: str
    parts: int

    @classmethod
    def of(cls, template: str) -> Shape:
        head, *rest = _PLACEHOLDER.split(template)
        if len(rest) > 1:
            raise ValueError(f"{template!r} has more than one placeholder")
        return cls(head, rest[0] if rest else "", len(rest))


# Compared by identity: keys are constants, and looking one up must be cheap.
@dataclass(frozen=True, eq=False)
class Key:
    """One kind of key. `name` holds at most one placeholder, such as `{transaction_id}`."""

    name: str
    type: KeyType
    meaning: str
    expiry: str = "none"
    scope: Scope = Scope.PARTITION

    def __post_init__(self) -> None:
        Shape.of(self.name)
