"""The role `archiver`: ended transactions out of Redis, into the database.

Any number may run; the two-key grant gives the work to one of them at a time. Nothing leaves Redis
before the database has confirmed it, and an error of the database is an error here: the work stays
where it is and is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from angarium.runtime import process_report
from angarium.runtime.application import Angarium
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.runtime.settings import Settings
from angarium.transactions.archive import Archive
from angarium.transactions.store import HandoutStore
from angarium.transactions.store.handout import Hand

POLL_S = 1.0
# Rows of one transaction of the database: enough to spread its commit thin.
COUNT = 500


def check(settings: Settings, app: Angarium) -> None:
    """The database is opened when the role starts, and says itself what is wrong with it."""


def build(runtime: Runtime, app: Angarium) -> Service:
    return Archiver(runtime, Archive(runtime.settings.database_url))


@dataclass(frozen=True)
class Filed:
    stored: int
    again: bool


class Archiver(Service):
    def __init__(self, runtime: Runtime, archive: Archive) -> None:
        super().__init__("archiver", clock=runtime.clock)
        self._runtime = runtime
        self._archive = archive
        self._store = HandoutStore(runtime)
        self._figures = process_report.ProcessReporter(runtime, "archiver")
        self._partitions = range(runtime.settings.partitions)
        # Stored, but not yet told: Redis keeps them until it hears of it.
        self._stored: dict[int, list[str]] = {partition: [] for partition in self._partitions}
        self._count = 0
        self._grant = "none"

    async def on_start(self) -> None:
        await self._archive.open()
        for partition in self._partitions:
            self.loop(f"archive{partition}", partial(self.run_once, partition), POLL_S)
        self.loop("figures", self._report, process_report.INTERVAL_S)

    async def run_once(self, partition: int, count: int = COUNT) -> Filed:
        """Tell what is stored, take more, store it."""
        told = self._stored[partition]
        # All that was stored is told here, so between two calls nothing is in hand.
        hand: Hand = "idle" if count else "leaving"
        due = await self._store.to_archive(partition, self._runtime.actor, told, count, hand)
        self._stored[partition] = []
        self._grant = due.grant.value
        if due.transactions:
            self._count += await self._archive.store(due.transactions)
            self._stored[partition] = [each.id for each in due.transactions]
        return Filed(len(due.transactions), again=bool(due.transactions))

    async def on_stop(self) -> None:
        await self.passes_ended()
        for partition in self._partitions:
            await self.run_once(partition, 0)
        await self._figures.withdraw()

    async def on_close(self) -> None:
        await self._archive.close()

    async def _report(self) -> None:
        report: dict[str, float | str] = {"archived": self._count, "grant": self._grant}
        self.log.info("figures", **report)
        await self._figures.report(report)
