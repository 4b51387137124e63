"""The declaration of a key: its name, type, meaning, scope and expiry."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

KeyType = Literal["string", "hash", "list", "set", "zset", "stream", "channel"]

_PLACEHOLDER = re.compile(r"\{\w+\}")


def placeholder_of(name: str) -> str | None:
    """For `state:{transaction_id}` this is `transaction_id`."""
    found = _PLACEHOLDER.search(name)
    return found.group()[1:-1] if found else None


class Scope(StrEnum):
    PARTITION = "partition"  # one in each partition, with its hash tag
    KEYSPACE = "keyspace"  # one in the keyspace, with the prefix only
    SERVER = "server"  # shared by all keyspaces on the server: no prefix


class Shape(NamedTuple):
    """A parsed name, so that inserting an id costs one concatenation."""

    head: str
    tail: str
    parts: int

    @classmethod
    def of(cls, template: str) -> Shape:
        head, *rest = _PLACEHOLDER.split(template)
        if len(rest) > 1:
            raise ValueError(f"{template!r} has more than one placeholder")
        return cls(head, rest[0] if rest else "", len(rest))


# Compared by identity: keys are constants, and a dictionary look-up must be cheap.


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
