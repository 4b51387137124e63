"""The archive's queue as the lake sees it: what may be stored, and telling that it is.

Asks as the role `archiver` does: at any time one process, whether it fills a database or the lake,
has the role and is given work.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from angarium.lake.errors import OptionInvalid
from angarium.lake.sources.options import WAIT_S_MAX, connect_to_redis, positive, required
from angarium.redis.blocking import BlockingRedis
from angarium.redis.options import Durability
from angarium.runtime.keyspace import Keyspace
from angarium.runtime.limits import MIB
from angarium.runtime.runtime import Runtime
from angarium.runtime.settings import CommonSettings
from angarium.transactions import keys as transactions_keys
from angarium.transactions.leases import ArchiveBatch, HolderState, TransactionLeases
from angarium.transactions.settings import TransactionsSettings

KNOWN = (
    "url", "prefix", "partitions", "lock1Seconds", "lock2Seconds", "maxRowsPerBatch",
    "journalBytesMax", "waitSeconds",
)  # fmt: skip
# Ids of a batch stand in its offset, which Spark writes to its log: about 80 KiB.
ROWS_MAX = 2_000


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

    def settings(self) -> CommonSettings:
        """Settings of the modules that fit these options."""
        from angarium.settings import Settings

        return Settings(
            redis_url=self.url,
            prefix=self.prefix,
            partitions=self.partitions,
            durability=Durability.MEMORY,  # what Redis forgets in a crash, it is told again
            redis={"unavailable_timeout_ms": int(self.wait_s * 1000)},
            journal={"enabled": bool(self.journal_bytes_max),
                     "bytes_max": self.journal_bytes_max or 256 * MIB},
            transactions={"persisting_permission_lock1_period": self.lock1_s,
                          "persisting_permission_lock2_period": self.lock2_s},
        )  # fmt: skip

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


class ArchiveStore:
    def __init__(self, options: ArchiveOptions, redis: BlockingRedis) -> None:
        self._options = options
        self._redis = redis
        self._space = Keyspace(options.prefix, options.partitions)
        # Never the same twice: a process that died leaves the role to others by its expiry.
        self._holder = f"lake-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"

    def ask(
        self, stored: Mapping[int, Sequence[str]], count: int, state: HolderState = ""
    ) -> dict[int, ArchiveBatch]:
        """Say of these partitions what is stored for good, and ask each for up to `count` more.

        `idle`: with this, nothing that we were given is unstored, so that nobody need wait for us.
        """

        async def each() -> dict[int, ArchiveBatch]:
            async with Runtime.open(self._options.settings(), actor=self._holder) as runtime:
                leases = TransactionLeases(runtime)
                return {
                    partition: await leases.to_archive(partition, self._holder, ids, count, state)
                    for partition, ids in stored.items()
                }

        return asyncio.run(each())

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
