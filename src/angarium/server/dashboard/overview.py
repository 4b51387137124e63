"""Samples all modules: waiting work, rates and notices.

A sample reads every module's store and changes nothing. The dashboard's service takes one every few
seconds, however many pages are open. `angarium top` takes its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pkgutil import resolve_name
from typing import Literal

import msgspec

import angarium
from angarium.modules import MODULES
from angarium.runtime.journal import Journal
from angarium.runtime.overview import ModuleSampler, Notice
from angarium.runtime.process_report import ProcessReport, read_processes
from angarium.runtime.runtime import Runtime
from angarium.runtime.text import count_of
from angarium.server.dashboard.rates import Rates

# The page of the lake has the whole reason.
REASON_CHARS_MAX = 200


class ModuleMetrics(msgspec.Struct, frozen=True):
    """`waiting` counts unfinished work; `oldest_ms` is the age of the oldest.

    `facts` are the module's other metrics, by name.
    """

    name: str
    processes: int
    waiting: int
    oldest_ms: int | None
    dead: int
    facts: Mapping[str, int]


class JournalSummary(msgspec.Struct, frozen=True):
    """`behind_ms`: the lag of each reader behind the newest entry; `full`: how many partitions'
    journals are."""

    entries: int
    events: int
    dropped_events: int
    behind_ms: dict[str, int]
    full: int = 0


class Overview(msgspec.Struct, frozen=True):
    at_ms: int
    version: str
    modules: list[ModuleMetrics]
    rates: dict[str, float]
    journal: JournalSummary
    processes: list[ProcessReport]
    notices: list[Notice]


class OverviewSampler:
    """A rate covers the time since the sample before."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._modules = [
            (module, _sampler(module.overview, runtime)) for module in MODULES if module.overview
        ]
        self._journal = Journal(runtime)
        self._rates = Rates()

    async def sample(self) -> Overview:
        now_ms = await self._now_ms()
        processes = await read_processes(self._runtime)
        journal = await self._journal_metrics()
        roles = [each.role for each in processes]
        modules: list[ModuleMetrics] = []
        refuses = self._runtime.options.journal_refuses
        notices = [*_journal_notices(journal, refuses=refuses), *_lake_notices(processes)]
        for module, sampler in self._modules:
            found = await sampler.sample({*roles}, now_ms)
            count = sum(roles.count(each.name) for each in module.roles)
            modules.append(
                ModuleMetrics(
                    module.name, count, found.waiting, found.oldest_ms, found.dead, found.facts
                )
            )
            notices += found.notices
        return Overview(
            at_ms=now_ms,
            version=angarium.__version__,
            modules=modules,
            rates=self._rates.update(processes, journal.events, now_ms),
            journal=journal,
            processes=processes,
            notices=sorted(notices, key=lambda notice: notice.level != "trouble"),
        )

    async def _now_ms(self) -> int:
        seconds, micros = await self._runtime.redis.call("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def _journal_metrics(self) -> JournalSummary:
        entries = events = dropped = full = 0
        behind: dict[str, int] = {}
        for partition in range(self._runtime.settings.partitions):
            status = await self._journal.status(partition)
            entries += status.entries
            events += status.events
            dropped += status.dropped_events
            full += status.full
            newest_ms = _moment(status.last_id)
            for reader, position in status.readers.items():
                late_ms = max(0, newest_ms - _moment(position)) if status.entries else 0
                behind[reader] = max(behind.get(reader, 0), late_ms)
        return JournalSummary(entries, events, dropped, behind, full)


def _sampler(path: str, runtime: Runtime) -> ModuleSampler:
    sampler: ModuleSampler = resolve_name(path)(runtime)
    return sampler


def _journal_notices(journal: JournalSummary, *, refuses: bool) -> Iterator[Notice]:
    if journal.full:
        many = f"the {count_of(journal.full, 'journal')} whose readers are behind"
        what = "new work is refused" if refuses else "events will be dropped unread"
        level: Literal["warning", "trouble"] = "trouble" if refuses else "warning"
        hint = "run the lake, forget readers that are gone, or raise ANGARIUM_JOURNAL__BYTES_MAX"
        yield Notice("lake", level, f"{many} is nearly full: {what}", hint)
    if journal.dropped_events:
        many = count_of(journal.dropped_events, "event")
        text = f"{many} dropped from the journal before they were read"
        yield Notice("lake", "warning", text, "run the lake, or raise ANGARIUM_JOURNAL__BYTES_MAX")


def _lake_notices(processes: Sequence[ProcessReport]) -> Iterator[Notice]:
    for each in processes:
        if each.role == "lake" and each.figures.get("state") in ("failed", "off"):
            why = str(each.figures.get("reason", "no reason given"))
            text = f"the lake does not run: {why[:REASON_CHARS_MAX]}"
            yield Notice("lake", "trouble", text, "mend the cause; the journal keeps its events")


def _moment(entry_id: str) -> int:
    return int(entry_id.partition("-")[0] or 0)
