"""The role `node`: takes transactions from the queues of its groups and runs them.

It takes many at once, runs them side by side, and lets the store gather what they report. Every
node also wakes sleepers, and puts back what a silent node had taken. A node that stops waits a
moment, then hands its work back to the front of the queues.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from angarium.runtime import process_report
from angarium.runtime.application import Angarium
from angarium.runtime.errors import AngariumError, SettingInvalid
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Loop, Service
from angarium.runtime.settings import Settings
from angarium.transactions.contact import Contact
from angarium.transactions.library import load_own_definitions, read_definitions
from angarium.transactions.model import Status, Taken, check_name, step_words
from angarium.transactions.runner import Ending, Pipelines, Runner, Running
from angarium.transactions.store import Able, Held, PipelineStore, TransactionStore

# A hint comes with new work; this is for the case that it was missed.
POLL_S = 0.5
# Sleepers wake this late at most.
WAKE_S = 0.25
WAKE_COUNT = 500
DEADLINES_S = 0.1
# A cancelled step that has not ended by then does not want to: its transaction ends without it.
STUBBORN_S = 2.0
# Signs of life per time-out: two may be lost before the third would come too late.
TURNS_PER_TIMEOUT = 4
GROUPS_MAX = 100


def check(settings: Settings, app: Angarium) -> None:
    groups = settings.transactions.node_groups
    if not 1 <= len(groups) <= GROUPS_MAX:
        raise SettingInvalid(
            "ANGARIUM_TRANSACTIONS__NODE_GROUPS", f"{len(groups)} groups can't be served", "name 1"
        )
    for group in groups:
        try:
            check_name(group, "node group")
        except AngariumError as error:
            name = "ANGARIUM_TRANSACTIONS__NODE_GROUPS"
            raise SettingInvalid(name, str(error), "choose another") from None
    if settings.transactions.pipelines is not None:
        read_definitions(settings.transactions.pipelines)


def build(runtime: Runtime, app: Angarium) -> Service:
    return Node(runtime, app)


@dataclass(frozen=True)
class Haul:
    """One pass of taking; `again` when there may be more at once."""

    taken: int
    again: bool


class Node(Service):
    def __init__(self, runtime: Runtime, app: Angarium) -> None:
        super().__init__("node", clock=runtime.clock)
        settings = runtime.settings.transactions
        self._runtime = runtime
        self._app = app
        self._settings = settings
        self._groups: Sequence[str] = settings.node_groups
        self._node = runtime.actor
        self._store = TransactionStore(runtime)
        self._pipelines = PipelineStore(runtime)
        self._runner: Runner
        self._open = ExitStack()
        self._figures = process_report.ProcessReporter(runtime, "node")
        self._running: dict[str, Running] = {}
        self._reserved = 0
        self._left = False
        self._idle = asyncio.Event()
        self._takers: list[Loop] = []
        self._more: set[int] = set()
        share = settings.node_concurrency // runtime.settings.partitions
        self._share = max(1, min(share, runtime.settings.limits.batch_items_max))
        self._tasks = asyncio.TaskGroup()
        self._tasks_ready = asyncio.Event()

    async def on_start(self) -> None:
        settings, runtime = self._settings, self._runtime
        if settings.pipelines is not None:
            definitions = read_definitions(settings.pipelines)
            missing = await load_own_definitions(self._pipelines, definitions, self._app)
            for pipeline, step_type in missing:
                self.log.warning(
                    "step_missing", pipeline=pipeline, step_type=step_type,
                    problem="no node has this step; transactions wait there until one has it",
                )  # fmt: skip
        handlers = self._app.handlers("step")
        self._step_types = tuple(handlers)
        self._step_words = step_words(handlers)
        self._awaited = {f"{group}|{each}" for group in self._groups for each in handlers}
        if not handlers:
            self.log.warning(
                "node_without_steps",
                problem="this node has no steps, so it runs no pipeline step",
                fix="name an application with @app.step functions: --app module:app",
            )
        self._runner = Runner(
            self._store,
            Pipelines(self._pipelines),
            handlers,
            settings.node_threads,
            self.clock,
            runtime.settings.limits,
            settings.step_timeout_ms,
        )
        self._open.callback(self._runner.close)
        self._left = False
        timeout_ms = settings.node_timeout_ms
        self._contacts = [Contact(timeout_ms) for _ in self._store.places.partitions]
        self._tasks_ready.clear()
        self.spawn("transactions", self._own_tasks)
        await self._tasks_ready.wait()
        await self._tend()
        self.spawn("hints", self._listen)
        partitions = self._store.places.partitions
        self._ask_waiting_s = [0.0] * len(partitions)
        self._takers = [self.loop(f"take{p}", partial(self._take, p), POLL_S) for p in partitions]
        self.loop("wake", self._wake, WAKE_S)
        # Until the very end: what we still have in hand must not be taken for orphaned.
        tend_s = settings.node_timeout_ms / 1000 / TURNS_PER_TIMEOUT
        self.loop("tend", self._tend, tend_s, until="stop")
        self.loop("deadlines", self._check_deadlines, DEADLINES_S, until="stop")
        self.loop("figures", self._report, process_report.INTERVAL_S)

    async def on_stop(self) -> None:
        await self.passes_ended()
        await self._wait_idle(self._settings.node_grace_ms / 1000)
        await self._hand_back()
        self._left = True
        for partition in self._store.places.partitions:
            await self._store.touch_node(partition, self._node, leaving=True)
        await self._figures.withdraw()

    async def on_close(self) -> None:
        self._open.close()

    # Taking

    async def _take(self, partition: int) -> Haul:
        free = self._settings.node_concurrency - len(self._running) - self._reserved
        # A share for each partition: they are asked at the same time.
        count = min(free, self._share)
        if count <= 0:
            self._more.add(partition)
            return Haul(0, again=False)
        self._reserved += count
        try:
            asked_s = self._ask_waiting_s
            able = Able(
                self._step_words, self._runner.whole_pipelines, self._asks_waiting(partition)
            )
            haul = await self._store.dequeue(partition, self._node, self._groups, count, able)
        finally:
            self._reserved -= count
            self._wake_takers(but=partition)
        for taken in haul.taken:
            self._launch(taken)
        tally = self._runner.tally
        tally.taken += len(haul.taken)
        tally.refused += haul.refused
        tally.not_ours += haul.waiting
        if able.waiting and haul.entries < count:
            # Nothing waits for us now. A hint that came meanwhile has put another list in place.
            asked_s[partition] = self.clock.monotonic() + POLL_S
        if haul.entries == count:
            self._more.add(partition)
        else:
            self._more.discard(partition)
        return Haul(haul.entries, again=haul.entries == count and free > len(haul.taken))

    def _asks_waiting(self, partition: int) -> bool:
        """Not with each call, for it costs one: after a hint, while there may be some, and again
        and again for the case that a hint was missed."""
        return self.clock.monotonic() >= self._ask_waiting_s[partition]

    def _launch(self, taken: Taken) -> None:
        now_s = self.clock.monotonic()
        running = Running(taken, now_s, now_s + max(0, taken.left_ms) / 1000)
        self._running[taken.id] = running
        running.task = self._tasks.create_task(self._run(running))

    async def _run(self, running: Running) -> None:
        ending = None
        try:
            ending = await self._runner.run(running)
        finally:
            if ending is None:
                self._ended(running)
        if ending is not None:
            await self._send_end(running, ending)

    async def _send_end(self, running: Running, ending: Ending) -> None:
        """Nobody waits for it: its task is over, and it stays in hand until Redis has its end."""
        try:
            running.end = self._runner.end_soon(running, ending)
        except AngariumError:
            await self._insist_on_end(running, ending)
        else:
            running.end.add_done_callback(partial(self._end_told, running, ending))

    def _end_told(self, running: Running, ending: Ending, told: asyncio.Future[bytes]) -> None:
        if self._runner.has_ended(ending, told) or self._left:
            self._ended(running)
        else:
            running.end = None
            running.task = self._tasks.create_task(self._insist_on_end(running, ending))

    async def _insist_on_end(self, running: Running, ending: Ending) -> None:
        try:
            await self._runner.end(running, ending)
        finally:
            self._ended(running)

    def _ended(self, running: Running) -> None:
        # Under the same id there may be a newer run by now, or nobody.
        if self._running.get(running.taken.id) is running:
            del self._running[running.taken.id]
        if 4 * len(self._running) <= 3 * self._settings.node_concurrency:
            # Not at each end, so that a call takes many; the poll takes what is less than that.
            self._wake_takers()
        if not self._running:
            self._idle.set()

    def _wake_takers(self, but: int = -1) -> None:
        """Those who found no space, or left something behind."""
        for partition in self._more - {but} if self._more else ():
            self._takers[partition].wake()
            self._more.discard(partition)

    async def _own_tasks(self) -> None:
        async with asyncio.TaskGroup() as self._tasks:
            self._tasks_ready.set()
            await asyncio.Event().wait()

    async def _listen(self) -> None:
        """Hints only: queues and marks in Redis are the truth."""
        async with self._runtime.redis.subscribe(self._store.places.channels[1]) as subscription:
            while True:
                batch = await subscription.receive()
                lines = [line for each in batch.messages for line in each.payload.split(b"\n")]
                words = {tuple(line.decode().split(" ", 1)) for line in lines}
                if batch.gap or any(map(self._is_awaited, words)):
                    self._ask_waiting_s = [0.0] * len(self._takers)
                if batch.gap or any(map(self._is_for_us, words)):
                    for taker in self._takers:
                        taker.wake()
                for word in words:
                    if word[0] == "cancel" and word[-1] in self._running:
                        self._stop_step(self._running[word[-1]], Status.CANCELLED, "")

    def _is_for_us(self, words: tuple[str, ...]) -> bool:
        """Work in a queue of ours, or something that waits for one of our step types."""
        return (words[0] == "work" and words[-1] in self._groups) or self._is_awaited(words)

    def _is_awaited(self, words: tuple[str, ...]) -> bool:
        return words[0] == "waits" and words[-1] in self._awaited

    # Minding

    async def _wake(self) -> Haul:
        woken = [
            await self._store.wake_due(partition, WAKE_COUNT)
            for partition in self._store.places.partitions
        ]
        return Haul(sum(woken), again=max(woken) == WAKE_COUNT)

    async def _tend(self) -> None:
        """Say that we live, and look for those who no longer do."""
        for partition, contact in enumerate(self._contacts):
            if self._left:
                return
            now_ms = await self._store.touch_node(
                partition, self._node, self._groups, self._step_types
            )
            # Looked at after the time was told: whatever was taken before it is in hand by now.
            held = Held(list(self._running), now_ms, contact.touched(now_ms))
            found = await self._store.recover(partition, self._node, held)
            if found.count:
                self.log.warning("orphans_recovered", partition=partition, count=found.count)
                self._runner.tally.recovered += found.count
            await self._store.expire_waiting(partition)
            for id in found.to_cancel:
                if id in self._running:  # the notice was missed
                    self._stop_step(self._running[id], Status.CANCELLED, "")

    async def _check_deadlines(self) -> None:
        now_s = self.clock.monotonic()
        for running in list(self._running.values()):
            if running.end is not None:
                continue  # its step is over
            if running.stopped is not None:
                if now_s - running.stopped_s > STUBBORN_S:
                    self._abandon(running)
            elif now_s >= running.deadline_s:
                self._stop_step(running, Status.TIMEOUT, "the transaction took too long")
            elif now_s >= running.step_deadline_s:
                self._stop_step(running, Status.TIMEOUT, running.overdue)

    def _stop_step(self, running: Running, status: Status, note: str) -> None:
        # Only a step is interrupted: between steps the next one does not begin.
        if running.step_deadline_s == math.inf:
            running.cancel = running.cancel or status is Status.CANCELLED
        elif running.stopped is None:
            running.stopped, running.note = status, note
            running.stopped_s = self.clock.monotonic()
            assert running.task is not None
            running.task.cancel()

    def _abandon(self, running: Running) -> None:
        """The step ignores its cancellation: end the transaction, and let the step be."""
        self.log.error("step_ignores_cancellation", transaction=running.taken.id)
        self._ended(running)
        ending = Ending(running.stopped or Status.TIMEOUT, b"", running.note)
        self._tasks.create_task(self._runner.end(running, ending))

    async def _wait_idle(self, seconds: float) -> None:
        if self._running and seconds > 0:
            self._idle.clear()
            async with asyncio.TaskGroup() as group:
                idle = group.create_task(self._idle.wait())
                timer = group.create_task(self.clock.sleep(seconds))
                await asyncio.wait({idle, timer}, return_when=asyncio.FIRST_COMPLETED)
                idle.cancel()
                timer.cancel()

    async def _hand_back(self) -> None:
        rest = list(self._running.values())
        waits: list[asyncio.Future[Any]] = []
        for each in rest:
            if each.end is not None:
                waits.append(each.end)
            elif each.task is not None:
                each.task.cancel()
                waits.append(each.task)
        if waits:
            await asyncio.wait(waits, timeout=0.5)
        # Without those whose end has arrived meanwhile; one that Redis did not take is insisted on.
        rest = [each for each in rest if each.end is None or not each.end.done()]
        for each in rest:
            if each.task is not None:
                each.task.cancel()
        replies = await asyncio.gather(
            *(self._store.return_to_queue(each.taken.id, each.taken.run) for each in rest),
            return_exceptions=True,
        )
        returned = replies.count("returned")
        self._runner.tally.returned += returned
        if rest:
            self.log.info("work_handed_back", count=returned, of=len(rest))

    async def _report(self) -> None:
        tally = self._runner.tally
        report: dict[str, float | str] = {
            "groups": ",".join(self._groups),
            "running": len(self._running),
            "taken": tally.taken,
            "refused": tally.refused,
            "not_ours": tally.not_ours,
            "handed_over": tally.handed_over,
            "steps": tally.steps,
            "slept": tally.slept,
            "recovered": tally.recovered,
            "lost": tally.lost,
            **{f"ended_{status}": count for status, count in tally.ended.items()},
        }
        self.log.info("figures", **report)
        await self._figures.report(report)
