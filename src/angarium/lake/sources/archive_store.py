"""The archive's queue as the lake sees it: what may be stored, and telling that it is.

Uses the very script of the transactions module, by its file and not by import: at any time one
process, whether it fills a database or the lake, has the role and is given work. Key names come
from the runtime.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from angarium.lake.errors import OptionInvalid
from angarium.lake.sources.options import WAIT_S_MAX, connect_to_redis, positive, required
from angarium.redis.blocking import BlockingRedis
from angarium.redis.connection import Argument
from angarium.runtime import keys as runtime_keys
from angarium.runtime.keyspace import Keyspace
from angarium.runtime.limits import MIB
from angarium.runtime.scripts import load_script
from angarium.runtime.settings import CommonSettings
from angarium.transactions import keys as transactions_keys
from angarium.transactions.settings import TransactionsSettings

TO_ARCHIVE = load_script("angarium.transactions", "transactions_to_archive")
KNOWN = (
    "url", "prefix", "partitions", "lock1Seconds", "lock2Seconds", "maxRowsPerBatch",
    "journalBytesMax", "waitSeconds",
)  # fmt: skip
# Ids of a batch stand in its offset, which Spark writes to its log: about 80 KiB.
ROWS_MAX = 2_000
WORKING = ("granted", "working")
HELD = (*WORKING, "grace")


@dataclass(frozen=True)
class ArchiveOptions:
    """Periods as in the settings of the transactions module."""

    url: str
    prefix: str
    partitions: int
    lock1_s: int
    lock2_s: int
    rows_max: int
    journal_bytes_max: int
    wait_s: float

    @classmethod
    def read(cls, options: Mapping[str, str]) -> ArchiveOptions:
        known = {name.lower() for name in KNOWN}
        for name in options:
            if name.lower() not in known:
                fix = f"known are {', '.join(KNOWN)}"
                raise OptionInvalid(name, "there is no such option", fix)
        off = options.get("journalBytesMax") == "0"
        return cls(
            url=required(options, "url", "set it to redis://host:6379 or the like"),
            prefix=options.get("prefix", ""),
            partitions=positive(options, "partitions") or 1,
            lock1_s=positive(options, "lock1Seconds") or 60,
            lock2_s=positive(options, "lock2Seconds") or 90,
            rows_max=positive(options, "maxRowsPerBatch") or ROWS_MAX,
            journal_bytes_max=0 if off else positive(options, "journalBytesMax") or 256 * MIB,
            wait_s=float(positive(options, "waitSeconds") or WAIT_S_MAX),
        )

    @property
    def source(self) -> str:
        return f"archive:{self.prefix}:{self.partitions}"

    def connect(self) -> BlockingRedis:
        return connect_to_redis(self.url, self.wait_s)


def options_of(settings: CommonSettings, url: str) -> dict[str, str]:
    """The options that fit the settings of the modules."""
    module = settings.group(TransactionsSettings)
    journal = settings.journal
    return {
        "url": url,
        "prefix": settings.prefix,
        "partitions": str(settings.partitions),
        "lock1Seconds": str(module.persisting_permission_lock1_period),
        "lock2Seconds": str(module.persisting_permission_lock2_period),
        "journalBytesMax": str(journal.bytes_max if journal.enabled else 0),
    }


@dataclass(frozen=True)
class Handed:
    """The answer to a question for work: whether we have the role, and ids to store."""

    status: str
    ids: Sequence[str]


class ArchiveStore:
    def __init__(self, options: ArchiveOptions, redis: BlockingRedis) -> None:
        self._options = options
        self._redis = redis
        self._space = Keyspace(options.prefix, options.partitions)
        # Never the same twice: a process that died leaves the role to others by its expiry.
        self._holder = f"lake-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"

    def ask(
        self, partition: int, stored: Sequence[str], count: int, *, idle: bool = False
    ) -> Handed:
        """Say what is stored for good, and ask for up to `count` more.

        `idle`: with this, nothing that we were given is unstored, so that nobody need wait for us.
        """
        options = self._options
        names = [
            self._space.name(runtime_keys.JOURNAL, partition),
            self._space.name(runtime_keys.JOURNAL_META, partition),
            *(
                self._space.name(key, partition, "")
                for key in (
                    transactions_keys.STATS_FINE, transactions_keys.STATS_MEDIUM,
                    transactions_keys.STATS_COARSE,
                )
            ),
            *(
                self._space.name(key, partition)
                for key in (
                    transactions_keys.TO_ARCHIVE, transactions_keys.WEBHOOKS,
                    transactions_keys.ARCHIVE_LOCK1, transactions_keys.ARCHIVE_LOCK2,
                )
            ),
            self._space.name(transactions_keys.STATE, partition, ""),
        ]  # fmt: skip
        args: list[Argument] = [
            "", self._holder, options.journal_bytes_max,
            self._space.global_name(transactions_keys.TRANSACTIONS_NOTIFY),
            self._space.global_name(transactions_keys.TRANSACTIONS_WORK),
            self._holder, options.lock1_s * 1000, options.lock2_s * 1000,
            count, len(stored), *stored, "idle" if idle else "",
        ]  # fmt: skip
        status, *rows = self._redis.run(TO_ARCHIVE, names, args)
        return Handed(status.decode(), [row[0].decode() for row in rows])

    def waiting(self) -> int:
        """How many are on the list, due or not."""
        names = [
            self._space.name(transactions_keys.TO_ARCHIVE, p)
            for p in range(self._options.partitions)
        ]
        return sum(int(self._redis.call("ZCARD", name, key=name)) for name in names)

    def states(self, partition: int, ids: Sequence[str]) -> list[dict[bytes, bytes]]:
        """The state of each, empty where there is none any more."""
        names = [self._space.name(transactions_keys.STATE, partition, each) for each in ids]
        if not names:
            return []
        replies: list[Any] = self._redis.ask([("HGETALL", name) for name in names], key=names[0])
        return [dict(zip(each[::2], each[1::2], strict=True)) for each in replies]
