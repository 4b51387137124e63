"""The options of `redis-stream`, read and checked once, on the driver."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from angarium.lake.errors import OptionInvalid
from angarium.lake.sources.entry_ids import number_of
from angarium.redis.blocking import BlockingRedis
from angarium.redis.options import RedisOptions

KNOWN = (
    "url", "keys", "path", "startingOffsets", "endingOffsets", "maxRowsPerBatch", "parallelism",
    "onGap", "decode", "reader", "prefix", "partitions", "waitSeconds",
    "key", "idColumn", "appId", "batchId", "maxLength",
)  # fmt: skip
PARALLELISM = 2
# One page of a stream may be many megabytes on a slow line; a server that is paused is noticed.
ANSWER_S_MAX = 60.0
# A minute's outage is ridden out with a margin; after that somebody has to look.
WAIT_S_MAX = 120.0
_Word = TypeVar("_Word", bound=StrEnum)


def connect_to_redis(url: str, wait_s: float = WAIT_S_MAX) -> BlockingRedis:
    """Opened inside a task, and of that task alone; everything sent on it may be repeated."""
    if url in ("", "embedded"):
        problem = "an embedded server has no fixed address" if url else "it is empty"
        raise OptionInvalid("url", problem, "use redis://host:6379 or the like")
    return BlockingRedis(
        RedisOptions(
            url,
            call_timeout_s=ANSWER_S_MAX,
            unavailable_timeout_s=wait_s,
            client_name="angarium-lake",
        )
    )


class Gap(StrEnum):
    ERROR = "error"
    COUNT = "count"


class Decode(StrEnum):
    FIELDS = "fields"
    JOURNAL = "journal"


@dataclass(frozen=True)
class StreamOptions:
    """`keys` are names or patterns; `reader` is registered in the journal it reads."""

    url: str
    keys: tuple[str, ...]
    starting: str | Mapping[str, str]
    ending: str | Mapping[str, str]
    rows_max: int | None
    parallelism: int
    gap: Gap
    decode: Decode
    reader: str
    wait_s: float

    @classmethod
    def read(cls, options: Mapping[str, str]) -> StreamOptions:
        check_names(options)
        decode = _word(options, "decode", Decode, Decode.FIELDS)
        reader = options.get("reader", "")
        if reader and decode is not Decode.JOURNAL:
            fix = "set decode to journal, or leave reader out"
            raise OptionInvalid("reader", "only a journal has registered readers", fix)
        return cls(
            url=required(options, "url", "set it to redis://host:6379 or the like"),
            keys=_keys(options, decode),
            starting=_offsets(options, "startingOffsets", "earliest"),
            ending=_offsets(options, "endingOffsets", "latest"),
            rows_max=positive(options, "maxRowsPerBatch"),
            parallelism=positive(options, "parallelism") or PARALLELISM,
            gap=_word(options, "onGap", Gap, Gap.ERROR),
            decode=decode,
            reader=reader,
            wait_s=float(positive(options, "waitSeconds") or WAIT_S_MAX),
        )

    @property
    def source(self) -> str:
        """What is read, as a checkpoint records it."""
        return ",".join(self.keys)

    def connect(self) -> BlockingRedis:
        return connect_to_redis(self.url, self.wait_s)


def check_names(options: Mapping[str, str]) -> None:
    known = {name.lower() for name in KNOWN}
    for name in options:
        if name.lower() not in known:
            raise OptionInvalid(name, "there is no such option", f"known are {', '.join(KNOWN)}")


def required(options: Mapping[str, str], name: str, fix: str) -> str:
    value = options.get(name, "").strip()
    if not value:
        raise OptionInvalid(name, "it is not set", fix)
    return value


def positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise OptionInvalid(name, f"'{text}' is not a number from 1 on", "use a whole number")
    return int(text)


def _keys(options: Mapping[str, str], decode: Decode) -> tuple[str, ...]:
    given = options.get("keys") or options.get("path") or ""
    names = tuple(sorted({name.strip() for name in given.split(",") if name.strip()}))
    if names or decode is Decode.FIELDS:
        if not names:
            raise OptionInvalid("keys", "no stream is named", "name keys or patterns, as a,b:*")
        return names
    prefix, count = options.get("prefix", ""), positive(options, "partitions") or 1
    return journal_keys(prefix, count)


def journal_keys(prefix: str, partitions: int) -> tuple[str, ...]:
    """The journal of each partition of a keyspace."""
    from angarium.runtime import keys
    from angarium.runtime.keyspace import Keyspace

    space = Keyspace(prefix, partitions)
    return tuple(space.name(keys.JOURNAL, number) for number in range(partitions))


def _word(options: Mapping[str, str], name: str, words: type[_Word], default: _Word) -> _Word:
    text = options.get(name, default.value)
    try:
        return words(text)
    except ValueError:
        known = " or ".join(word.value for word in words)
        raise OptionInvalid(name, f"'{text}' is not known", f"use {known}") from None


def _offsets(options: Mapping[str, str], name: str, default: str) -> str | Mapping[str, str]:
    """A word for all keys, or an id for each as JSON."""
    text = options.get(name, default).strip()
    if text in ("earliest", "latest"):
        return text
    try:
        found = json.loads(text) if text.startswith("{") else None
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        fix = 'use earliest, latest or {"key": "ms-sequence"}'
        raise OptionInvalid(name, f"'{text}' can't be read", fix)
    for each in found.values():
        number_of(each)
    return found
