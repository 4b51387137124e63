"""The role `archiver`: moves ended transactions from Redis to the database.

Any number may run; the two-key grant gives the work to one of them at a time. Nothing leaves Redis
before the database has committed it. After a database error the transactions stay in Redis, and the
archiver tries again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from angarium.runtime import process_report
from angarium.runtime.application import Application
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.runtime.settings import CommonSettings
from angarium.transactions.archive import TransactionArchive
from angarium.transactions.leases import HolderState, TransactionLeases
from angarium.transactions.settings import TransactionsSettings

POLL_S = 1.0
# Rows per commit.
COUNT = 500
SWEEP_S = 60.0


def check(settings: CommonSettings, app: Application) -> None:
    """Nothing to check: opening the database when the role starts reports what is wrong."""


def build(runtime: Runtime, app: Application) -> Service:
    return Archiver(runtime, TransactionArchive(runtime.settings.database_url))


@dataclass(frozen=True)
class ArchivePass:
    stored: int
    again: bool


@dataclass(frozen=True)
class SweepPass:
    removed: int
    again: bool


class Archiver(Service):
    def __init__(self, runtime: Runtime, archive: TransactionArchive) -> None:
        super().__init__("archiver", clock=runtime.clock)
        self._runtime = runtime
        self._archive = archive
        self._leases = TransactionLeases(runtime)
        self._reporter = process_report.ProcessReporter(runtime, "archiver")
        self._partitions = range(runtime.settings.partitions)
        # Committed, but not yet reported to Redis, which keeps them until then.
        self._stored: dict[int, list[str]] = {partition: [] for partition in self._partitions}
        self._retention_s = runtime.settings.group(TransactionsSettings).archive_retention
        self._count = self._removed = 0
        self._grant = "none"

    async def on_start(self) -> None:
        await self._archive.open()
        for partition in self._partitions:
            self.loop(f"archive{partition}", partial(self.run_once, partition), POLL_S)
        if self._retention_s:
            self.loop("sweep", self.sweep, SWEEP_S)
        self.loop("metrics", self._report, process_report.INTERVAL_S)

    async def run_once(self, partition: int, count: int = COUNT) -> ArchivePass:
        """Report what is stored, lease up to `count` more, and store them."""
        stored = self._stored[partition]
        # Every call reports all that was stored, so between two calls there is no open work.
        state: HolderState = "idle" if count else "leaving"
        batch = await self._leases.to_archive(partition, self._runtime.actor, stored, count, state)
        self._stored[partition] = []
        self._grant = batch.grant.value
        if batch.transactions:
            self._count += await self._archive.store(batch.transactions)
            self._stored[partition] = [each.id for each in batch.transactions]
        return ArchivePass(len(batch.transactions), again=bool(batch.transactions))

    async def sweep(self) -> SweepPass:
        """Remove what is older than the retention. Every archiver may: a row goes once."""
        seconds, _ = await self._runtime.redis.call("TIME")
        now_ms = self.clock.now_ms() or int(seconds) * 1000
        before_ms = now_ms - self._retention_s * 1000
        removed = await self._archive.remove_older(before_ms, COUNT)
        self._removed += removed
        return SweepPass(removed, again=removed == COUNT)

    async def on_stop(self) -> None:
        await self.passes_ended()
        for partition in self._partitions:
            await self.run_once(partition, 0)
        await self._reporter.withdraw()

    async def on_close(self) -> None:
        await self._archive.close()

    async def _report(self) -> None:
        report: dict[str, float | str] = {
            "archived": self._count,
            "removed": self._removed,
            "grant": self._grant,
        }
        self.log.debug("metrics", **report)
        await self._reporter.report(report)
