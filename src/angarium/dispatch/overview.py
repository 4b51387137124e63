"""Dispatch in the overview."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from angarium.dispatch.service import DispatchService, QueueStatus
from angarium.runtime.overview import ModuleSample, Notice
from angarium.runtime.process_report import read_processes
from angarium.runtime.runtime import Runtime
from angarium.runtime.text import count_of

DISPATCHER = "dispatcher"


class DispatchSampler:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._dispatch = DispatchService(runtime)

    async def sample(self, roles: Set[str], now_ms: int) -> ModuleSample:
        status = await self._dispatch.status()
        reports = [each for each in await read_processes(self._runtime) if each.role == DISPATCHER]
        found = status.partitions
        facts = {
            "pending": sum(each.pending for each in found),
            "inbox": sum(each.inbox for each in found),
            "processed": sum(each.processed for each in found),
            "partitions": len(found),
            "without_leader": sum(each.leader is None for each in found),
            "consumers": len(status.consumers) + sum(each.workers for each in status.queues),
            "dead": sum(each.dead for each in found),
            "lost": int(sum(float(each.figures.get("lost", 0)) for each in reports)),
        }
        waiting = facts["pending"] + facts["inbox"]
        oldest_ms = max((each.oldest_ms for each in found if each.pending), default=None)
        notices = [*dispatch_notices(facts, waiting), *queue_notices(status.queues)]
        return ModuleSample(waiting, facts, oldest_ms, facts["dead"], notices)


def queue_notices(queues: Sequence[QueueStatus]) -> Iterator[Notice]:
    """Messages that no live worker can run wait; say which function is missing."""
    for each in queues:
        if each.waiting and not each.workers:
            text = (
                f"{count_of(each.waiting, 'message')} in queue {each.queue!r} and no worker has it"
            )
            hint = f'start a worker whose application has @app.worker("{each.queue}")'
            yield Notice("dispatch", "trouble", text, hint)


def dispatch_notices(facts: Mapping[str, int], waiting: int) -> Iterator[Notice]:
    if waiting and facts["without_leader"]:
        text = f"{count_of(facts['without_leader'], 'partition')} without a leader"
        text += " while messages wait"
        yield Notice("dispatch", "trouble", text, "start one: angarium serve dispatcher")
    elif waiting and not facts["consumers"]:
        text = f"{count_of(waiting, 'message')} and no worker"
        yield Notice("dispatch", "trouble", text, "start one: angarium serve worker")
    if facts["lost"]:
        text = f"{count_of(facts['lost'], 'published message')} lost since the dispatchers started"
        yield Notice("dispatch", "warning", text, "Redis refused them: is it out of memory?")
    if facts["dead"]:
        text = count_of(facts["dead"], "dead letter")
        yield Notice("dispatch", "warning", text, "look at the reasons, then retry or drop them")
