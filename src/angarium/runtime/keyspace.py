"""The declaration of a key, and the names of keys in Redis under the settings of this process.

Each module declares its keys in its `keys.py`. With one partition a name is exactly the declared
one behind the prefix; with more, it begins with the hash tag of its partition, so that all keys of
a partition share a cluster slot and a script may touch any of them. This file builds strings and
never talks to Redis.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
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


# Increased when keys change their meaning. `LAYOUT` records it, and a process with another version
# refuses to start.

LAYOUT_VERSION = 1


class KeyMatch(NamedTuple):
    """The key that a name in Redis belongs to; `part` is the id in the name, if it has one."""

    key: Key
    partition: int
    part: str | None


class Keyspace:
    """Names of keys under one prefix, spread over `partitions` hash slots."""

    def __init__(
        self,
        prefix: str,
        partitions: int,
        overrides: Mapping[Key, str] | None = None,
        keys: Sequence[Key] = (),
    ) -> None:
        """`overrides` are names that follow a setting; `keys` are the ones `explain` can find."""
        self._keys = keys
        self.prefix = prefix
        self.partitions = partitions
        self._tags = (
            (prefix,)
            if partitions == 1
            else tuple(f"{{p{number}}}:{prefix}" for number in range(partitions))
        )
        self._shapes = _Shapes(partitioned=True)
        self._shapes_once = _Shapes(partitioned=False)
        for key, template in (overrides or {}).items():
            shape = Shape.of(template)
            if shape.parts != Shape.of(key.name).parts:
                raise ValueError(f"{template!r} must have the placeholder of {key.name!r}")
            partitioned = key.scope is Scope.PARTITION
            (self._shapes if partitioned else self._shapes_once)[key] = shape

    def partition_of(self, routing_id: str | bytes) -> int:
        """Must never change: stored data depends on it."""
        if self.partitions == 1:
            return 0
        data = routing_id.encode() if isinstance(routing_id, str) else routing_id
        return zlib.crc32(data) % self.partitions

    def name(self, key: Key, partition: int = 0, *parts: str) -> str:
        head, tail, expected = self._shapes[key]
        if len(parts) != expected:
            raise TypeError(f"{key.name} takes {expected} parts, not {len(parts)}")
        # An id may contain braces: a cluster hashes the first tag in a name, which is ours.
        if expected:
            return f"{self._tags[partition]}{head}{parts[0]}{tail}"
        return self._tags[partition] + head

    def global_name(self, key: Key, *parts: str) -> str:
        """The name of a key that exists once in a keyspace or on a server, or of a channel."""
        head, tail, expected = self._shapes_once[key]
        if len(parts) != expected:
            raise TypeError(f"{key.name} takes {expected} parts, not {len(parts)}")
        prefix = "" if key.scope is Scope.SERVER else self.prefix
        return prefix + head + "".join(parts) + tail

    def explain(self, name: str) -> KeyMatch | None:
        """The key that a name belongs to, or None for a name of others.

        If two templates match, the longer fixed text at the start decides, then the one at the end.
        An id can make the name of one key equal to the name of another. To detect that, build the
        name and explain it; conversations refuse such ids.
        """
        partition, rest = self._split(name)
        best: tuple[tuple[int, int], KeyMatch] | None = None
        for key in self._keys:
            if key.type == "channel":
                continue
            if key.scope is Scope.PARTITION:
                shape, text = self._shapes[key], rest
            else:
                shape = self._shapes_once[key]
                text = name if key.scope is Scope.SERVER else _behind(self.prefix, name)
            fixed = len(shape.head), len(shape.tail)
            if text is not None and _fits(shape, text) and (best is None or fixed > best[0]):
                part = text[len(shape.head) : len(text) - len(shape.tail)] if shape.parts else None
                best = fixed, KeyMatch(key, partition, part)
        return best[1] if best else None

    def _split(self, name: str) -> tuple[int, str | None]:
        """The partition and the name without tag and prefix; None if those do not match."""
        if self.partitions == 1:
            return 0, _behind(self.prefix, name)
        digits = name[2 : name.find("}")] if name.startswith("{p") else ""
        partition = int(digits) if digits.isdecimal() and digits.isascii() else self.partitions
        if partition >= self.partitions:
            return 0, None
        return partition, _behind(self._tags[partition], name)


class _Shapes(dict[Key, Shape]):
    """Shapes by key, each parsed on first use. Keys of another scope are refused."""

    def __init__(self, *, partitioned: bool) -> None:
        super().__init__()
        self._partitioned = partitioned

    def __missing__(self, key: Key) -> Shape:
        if (key.scope is Scope.PARTITION) is not self._partitioned:
            raise TypeError(f"{key.name} exists once per {key.scope}")
        shape = self[key] = Shape.of(key.name)
        return shape


def _behind(start: str, name: str) -> str | None:
    return name[len(start) :] if name.startswith(start) else None


def _fits(shape: Shape, text: str) -> bool:
    head, tail, parts = shape
    if not parts:
        return text == head
    return len(text) > len(head) + len(tail) and text.startswith(head) and text.endswith(tail)
