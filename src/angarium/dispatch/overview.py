"""Dispatch in the overview."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from angarium.dispatch.store import DispatchStore
from angarium.runtime.overview import ModuleSample, Notice, count_of
from angarium.runtime.runtime import Runtime


class DispatchSampler:
    def __init__(self, runtime: Runtime) -> None:
        self._partitions = range(runtime.settings.partitions)
        self._store = runtime.store(DispatchStore)

    async def sample(self, roles: Set[str], now_ms: int) -> ModuleSample:
        found = [await self._store.status(partition) for partition in self._partitions]
        consumers = await self._store.consumers()
        facts = {
            "pending": sum(each.pending for each in found),
            "inbox": sum(each.inbox for each in found),
            "processed": sum(each.processed for each in found),
            "partitions": len(found),
            "without_leader": sum(each.leader is None for each in found),
            "consumers": len(consumers),
            "dead": sum(each.dead for each in found),
        }
        waiting = facts["pending"] + facts["inbox"]
        oldest_ms = max((each.oldest_ms for each in found if each.pending), default=None)
        notices = [*dispatch_notices(facts, waiting)]
        return ModuleSample(waiting, facts, oldest_ms, facts["dead"], notices)


def dispatch_notices(facts: Mapping[str, int], waiting: int) -> Iterator[Notice]:
    if waiting and facts["without_leader"]:
        text = f"{count_of(facts['without_leader'], 'partition')} without a leader"
        text += " while messages wait"
        yield Notice("dispatch", "trouble", text, "start one: angarium serve dispatcher")
    elif waiting and not facts["consumers"]:
        text = f"{count_of(waiting, 'message')} and no worker"
        yield Notice("dispatch", "trouble", text, "start one: angarium serve worker")
    if facts["dead"]:
        text = count_of(facts["dead"], "dead letter")
        yield Notice("dispatch", "warning", text, "look at the reasons, then retry or discard")
