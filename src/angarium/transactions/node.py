"""The role `node`: takes transactions from the queues of its groups and runs their steps.

A node takes many transactions in one call and runs them concurrently. The store batches their
transitions. Every node also wakes sleeping transactions, and recovers those of silent nodes. A node
that stops waits for its steps, then returns the rest to the front of the queues.
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
from angarium.runtime.application import Application
from angarium.runtime.errors import AngariumError, SettingInvalid
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Loop, Service
from angarium.runtime.settings import CommonSettings
from angarium.transactions.definitions import load_node_definitions, read_definitions
from angarium.transactions.limits import TransactionsLimits
from angarium.transactions.liveness import LivenessCheck
from angarium.transactions.model import (
    TakenTransaction,
    TransactionStatus,
    check_name,
    encode_step_types,
)
from angarium.transactions.node_work import NodeCapabilities, NodeWork
from angarium.transactions.pipeline_cache import PipelineCache
from angarium.transactions.pipeline_store import PipelineStore
from angarium.transactions.runner import TransactionRunner
from angarium.transactions.running import Completion, RunningTransaction
from angarium.transactions.service import TransactionsService
from angarium.transactions.settings import TransactionsSettings
from angarium.transactions.store import TransactionStore

# The interval of polling. A hint announces new work earlier, unless the hint is lost.
POLL_S = 0.5
# Sleeping transactions wake at most this late.
WAKE_S = 0.25
WAKE_COUNT = 500
DEADLINES_S = 0.1
# A cancelled step that runs on after this time is abandoned: its transaction ends without it.
CANCEL_GRACE_S = 2.0
# Two heartbeats may be lost before the node counts as silent.
HEARTBEATS_PER_TIMEOUT = 4
GROUPS_MAX = 100
# As in dequeue_transactions.lua.
SUSPECT_CRASHES = 2


def check(settings: CommonSettings, app: Application) -> None:
    groups = settings.group(TransactionsSettings).node_groups
    if not 1 <= len(groups) <= GROUPS_MAX:
        raise SettingInvalid(
            "ANGARIUM_TRANSACTIONS__NODE_GROUPS",
            f"it names {len(groups)} groups",
            f"name 1 to {GROUPS_MAX}",
        )
    for group in groups:
        try:
            check_name(group, "node group")
        except AngariumError as error:
            name = "ANGARIUM_TRANSACTIONS__NODE_GROUPS"
            raise SettingInvalid(name, str(error), "choose another") from None
    pipelines = settings.group(TransactionsSettings).pipelines
    if pipelines is not None:
        read_definitions(pipelines)


def build(runtime: Runtime, app: Application) -> Service:
    return TransactionNode(runtime, app)


@dataclass(frozen=True)
class NodePass:
    """The result of one pass of a loop. `again`: there may be more work already."""

    count: int
    again: bool


class TransactionNode(Service):
    def __init__(self, runtime: Runtime, app: Application) -> None:
        super().__init__("node", clock=runtime.clock)
        settings = runtime.settings.group(TransactionsSettings)
        self._runtime = runtime
        self._app = app
        self._settings = settings
        self._groups: Sequence[str] = settings.node_groups
        self._node = runtime.actor
        self._store = runtime.store(TransactionStore)
        self._pipelines = runtime.store(PipelineStore)
        self._service = TransactionsService(runtime, app)
        self._runner: TransactionRunner
        self._open = ExitStack()
        self._reporter = process_report.ProcessReporter(runtime, "node")
        self._running: dict[str, RunningTransaction] = {}
        # Slots that calls in flight may fill.
        self._reserved = self._reserved_threads = 0
        self._alone_partition = 0
        self._runs_alone = ""
        self._slots_wanted = False
        self._first_group = 0
        self._left = False
        self._idle = asyncio.Event()
        self._take_loops: list[Loop] = []
        # Partitions that may have more work than this node could take.
        self._partitions_with_more: set[int] = set()
        share = settings.node_concurrency // runtime.settings.partitions
        self._threads_share = max(1, settings.node_threads // runtime.settings.partitions)
        self._share = max(1, min(share, runtime.settings.limits.batch_items_max))
        self._tasks = asyncio.TaskGroup()
        self._tasks_ready = asyncio.Event()

    @property
    def running_count(self) -> int:
        return len(self._running)

    async def on_start(self) -> None:
        settings, runtime = self._settings, self._runtime
        if settings.pipelines is not None:
            definitions = read_definitions(settings.pipelines)
            missing = await load_node_definitions(self._pipelines, definitions, self._app)
            for pipeline, step_type in missing:
                self.log.warning(
                    "step_missing", pipeline=pipeline, step_type=step_type,
                    problem="no node has this step; transactions wait there until one has it",
                )  # fmt: skip
        handlers = self._app.handlers("step")
        self._step_types = tuple(handlers)
        self._encoded_step_types = encode_step_types(handlers)
        self._awaited = {f"{group}|{each}" for group in self._groups for each in handlers}
        if not handlers:
            self.log.warning(
                "node_without_steps",
                problem="this node has no steps, so it runs no pipeline step",
                fix="name an application with @app.step functions: --app module:app",
            )
        self._runner = TransactionRunner(
            self._store,
            PipelineCache(self._pipelines),
            handlers,
            settings.node_threads,
            self.clock,
            runtime.settings.limits_of(TransactionsLimits),
            settings.step_timeout_ms,
            settings.max_runs,
            self._service.get,
        )
        self._runner.on_thread_free = self._slot_free
        plain = (name for name, each in handlers.items() if not each.is_async)
        self._encoded_plain_types = encode_step_types(plain)
        self._open.callback(self._runner.close)
        self._left = False
        partitions = self._store.partitions
        self._liveness = [LivenessCheck(settings.node_timeout_ms) for _ in partitions]
        self._tasks_ready.clear()
        self.spawn("transactions", self._run_tasks)
        await self._tasks_ready.wait()
        await self._heartbeat()
        self.spawn("hints", self._receive_hints)
        self._next_waiting_check_s = [0.0] * len(partitions)
        self._take_loops = [
            self.loop(f"take{p}", partial(self._take, p), POLL_S) for p in partitions
        ]
        self.loop("wake", self._wake_sleeping, WAKE_S)
        # Until the node has stopped, so that others do not recover the transactions it still runs.
        heartbeat_s = settings.node_timeout_ms / 1000 / HEARTBEATS_PER_TIMEOUT
        self.loop("heartbeat", self._heartbeat, heartbeat_s, until="stop")
        self.loop("deadlines", self._check_deadlines, DEADLINES_S, until="stop")
        self.loop("metrics", self._report, process_report.INTERVAL_S)

    async def on_stop(self) -> None:
        await self.passes_ended()
        await self._wait_idle(self._settings.node_grace_ms / 1000)
        await self._return_transactions()
        self._left = True
        for partition in self._store.partitions:
            await self._store.touch_node(partition, self._node, leaving=True)
        await self._reporter.withdraw()

    async def on_close(self) -> None:
        self._open.close()
        await self._service.close()

    # Taking

    async def _take(self, partition: int) -> NodePass:
        # Steps in threads have their own limit. Both kinds are asked for in one call.
        threads = min(self._threads_share, self._runner.threads_free - self._reserved_threads)
        free = self._coroutines_free()
        # Each partition has a share, because the partitions are asked at the same time.
        count = min(free, self._share)
        if count <= 0:
            self._partitions_with_more.add(partition)
            return NodePass(0, again=False)
        threads = max(0, min(threads, count))
        # The partitions are asked at the same time, so they take turns with this one slot.
        alone = not self._runs_alone and partition == self._alone_partition
        self._reserved += count
        self._reserved_threads += threads
        try:
            next_check_s = self._next_waiting_check_s
            # Waiting transactions cost an extra call, so not every dequeue asks for them: one does
            # after a hint, while there may be more, and every POLL_S in case a hint was lost.
            waiting = self.clock.monotonic() >= next_check_s[partition]
            capabilities = NodeCapabilities(
                self._encoded_step_types, self._runner.complete_pipelines, waiting,
                self._encoded_plain_types, threads, alone,
            )  # fmt: skip
            # Each call begins with another group, so that none is always served last.
            first = self._first_group = (self._first_group + 1) % len(self._groups)
            groups = [*self._groups[first:], *self._groups[:first]]
            batch = await self._store.dequeue(partition, self._node, groups, count, capabilities)
        finally:
            self._reserved -= count
            self._reserved_threads -= threads
            if partition == self._alone_partition:
                self._alone_partition = (partition + 1) % len(self._take_loops)
            self._wake_take_loops(but=partition)
        for taken in batch.taken:
            self._launch(taken)
        metrics = self._runner.metrics
        metrics.taken += len(batch.taken)
        metrics.refused += batch.refused
        metrics.left_waiting += batch.waiting
        # A call that used all threads it had may have left transactions that wait for one.
        in_threads = sum(each.needs_thread for each in batch.taken)
        self._slots_wanted = self._slots_wanted or batch.waiting > 0 or in_threads >= threads
        if waiting and not batch.more:
            # No transaction waits for this node. A hint that came meanwhile has replaced the list.
            next_check_s[partition] = self.clock.monotonic() + POLL_S
        if batch.more:
            self._partitions_with_more.add(partition)
        elif threads == 0 < self._runner.threads_free:
            # Calls for other partitions had reserved the free threads. Ask again after them.
            self._next_waiting_check_s[partition] = 0.0
            self._partitions_with_more.add(partition)
        else:
            self._partitions_with_more.discard(partition)
        return NodePass(batch.entries, again=batch.more and free > len(batch.taken))

    def _coroutines_free(self) -> int:
        in_threads = self._settings.node_threads - self._runner.threads_free
        return self._settings.node_concurrency - (len(self._running) - in_threads) - self._reserved

    def _launch(self, taken: TakenTransaction) -> None:
        deadline_s = self.clock.monotonic() + max(0, taken.remaining_ms) / 1000
        running = RunningTransaction(taken, deadline_s)
        if taken.needs_thread:
            self._runner.take_thread(running)
        if taken.crashes >= SUSPECT_CRASHES:
            self._runs_alone = taken.id
        self._running[taken.id] = running
        running.task = self._tasks.create_task(self._run(running))

    async def _run(self, running: RunningTransaction) -> None:
        completion = None
        try:
            completion = await self._runner.run(running)
        finally:
            if completion is None:
                self._ended(running)
        if completion is not None:
            await self._send_end(running, completion)

    async def _send_end(self, running: RunningTransaction, completion: Completion) -> None:
        """No task waits for the reply. It counts as running until Redis has stored its end."""
        try:
            running.end = self._runner.end_soon(running, completion)
        except AngariumError:
            await self._retry_end(running, completion)
        else:
            running.end.add_done_callback(partial(self._end_answered, running, completion))

    def _end_answered(
        self, running: RunningTransaction, completion: Completion, status: asyncio.Future[str]
    ) -> None:
        if self._runner.has_ended(completion, status) or self._left:
            self._ended(running)
        else:
            running.end = None
            running.task = self._tasks.create_task(self._retry_end(running, completion))

    async def _retry_end(self, running: RunningTransaction, completion: Completion) -> None:
        try:
            await self._runner.end(running, completion)
        finally:
            self._ended(running)

    def _ended(self, running: RunningTransaction) -> None:
        # Meanwhile this node may have taken a newer run of the same transaction.
        if self._running.get(running.taken.id) is running:
            del self._running[running.taken.id]
        was_alone = self._runs_alone == running.taken.id
        if was_alone:
            self._runs_alone = ""
        if self._runner.release_thread(running) or was_alone:
            self._slot_free()
        if 4 * len(self._running) <= 3 * self._settings.node_concurrency:
            # Not at each end, so that one dequeue takes many. Polling covers the rest.
            self._wake_take_loops()
        if not self._running:
            self._idle.set()

    def _slot_free(self) -> None:
        """Look for transactions that wait for a thread or to run alone."""
        if self._slots_wanted:
            self._slots_wanted = False
            self._next_waiting_check_s = [0.0] * len(self._take_loops)
            for loop in self._take_loops:
                loop.wake()

    def _wake_take_loops(self, but: int = -1) -> None:
        partitions = self._partitions_with_more
        for partition in partitions - {but} if partitions else ():
            self._take_loops[partition].wake()
            partitions.discard(partition)

    async def _run_tasks(self) -> None:
        async with asyncio.TaskGroup() as self._tasks:
            self._tasks_ready.set()
            await asyncio.Event().wait()

    async def _receive_hints(self) -> None:
        """A lost hint only costs time: the node also polls the queues and the cancel fields."""
        async with self._runtime.subscribe(self._store.work_channel) as subscription:
            while True:
                batch = await subscription.receive()
                lines = [line for each in batch.messages for line in each.payload.split(b"\n")]
                hints = {tuple(line.decode().split(" ", 1)) for line in lines}
                step_awaited = any(h[0] == "waits" and h[-1] in self._awaited for h in hints)
                has_work = any(h[0] == "work" and h[-1] in self._groups for h in hints)
                if batch.gap or step_awaited:
                    self._next_waiting_check_s = [0.0] * len(self._take_loops)
                if batch.gap or step_awaited or has_work:
                    for loop in self._take_loops:
                        loop.wake()
                for hint in hints:
                    if hint[0] == "cancel" and hint[-1] in self._running:
                        self._stop_step(self._running[hint[-1]], TransactionStatus.CANCELLED, "")

    # Maintenance

    async def _wake_sleeping(self) -> NodePass:
        woken = [
            await self._store.wake_due(partition, WAKE_COUNT)
            for partition in self._store.partitions
        ]
        return NodePass(sum(woken), again=max(woken) == WAKE_COUNT)

    async def _heartbeat(self) -> None:
        """Send a heartbeat, recover the transactions of silent nodes, end overdue ones."""
        for partition, liveness in enumerate(self._liveness):
            if self._left:
                return
            now_ms = await self._store.touch_node(
                partition, self._node, self._groups, self._step_types
            )
            # Read after the reply: all that this node took before `now_ms` is in the list by now.
            work = NodeWork(list(self._running), now_ms, liveness.heartbeat(now_ms))
            found = await self._store.recover(partition, self._node, work)
            if found.count:
                self.log.warning("orphans_recovered", partition=partition, count=found.count)
                self._runner.metrics.recovered += found.count
            for id, reason in found.dead:
                self.log.error("transaction_dead", transaction=id, reason=reason)
            await self._store.expire_waiting(partition)
            for id in found.to_cancel:
                if id in self._running:  # the hint was lost
                    self._stop_step(self._running[id], TransactionStatus.CANCELLED, "")

    async def _check_deadlines(self) -> None:
        now_s = self.clock.monotonic()
        for running in list(self._running.values()):
            if running.end is not None:
                continue  # its steps are over
            if running.stopped is not None:
                if now_s - running.stopped_s > CANCEL_GRACE_S:
                    self._abandon(running)
            elif now_s >= running.deadline_s:
                self._stop_step(running, TransactionStatus.TIMEOUT, "the transaction took too long")
            elif now_s >= running.step_deadline_s:
                self._stop_step(running, TransactionStatus.TIMEOUT, running.timeout_note, late=True)

    def _stop_step(
        self,
        running: RunningTransaction,
        status: TransactionStatus,
        note: str,
        *,
        late: bool = False,
    ) -> None:
        # A running step is cancelled. Between two steps, the next one does not begin.
        if running.step_deadline_s == math.inf:
            running.cancel = running.cancel or status is TransactionStatus.CANCELLED
        elif running.stopped is None:
            running.stopped, running.note, running.step_late = status, note, late
            running.stopped_s = self.clock.monotonic()
            assert running.task is not None
            running.task.cancel()

    def _abandon(self, running: RunningTransaction) -> None:
        """End a transaction whose step ignores its cancellation."""
        self.log.error("step_ignores_cancellation", transaction=running.taken.id)
        self._ended(running)
        reason = "TimeoutError" if running.step_late else ""
        status = running.stopped or TransactionStatus.TIMEOUT
        completion = Completion(status, b"", running.note, reason)
        self._tasks.create_task(self._runner.end(running, completion))

    async def _wait_idle(self, seconds: float) -> None:
        if self._running and seconds > 0:
            self._idle.clear()
            async with asyncio.TaskGroup() as group:
                idle = group.create_task(self._idle.wait())
                timer = group.create_task(self.clock.sleep(seconds))
                await asyncio.wait({idle, timer}, return_when=asyncio.FIRST_COMPLETED)
                idle.cancel()
                timer.cancel()

    async def _return_transactions(self) -> None:
        """Return what still runs to the front of the queues."""
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
        # Without those whose completion was answered meanwhile. If Redis refused it, it is retried.
        rest = [each for each in rest if each.end is None or not each.end.done()]
        for each in rest:
            if each.task is not None:
                each.task.cancel()
        replies = await asyncio.gather(
            *(self._store.return_to_queue(each.taken.id, each.taken.run) for each in rest),
            return_exceptions=True,
        )
        returned = replies.count("returned")
        self._runner.metrics.returned += returned
        if rest:
            self.log.info("work_handed_back", count=returned, of=len(rest))

    async def _report(self) -> None:
        report: dict[str, float | str] = {
            "groups": ",".join(self._groups),
            "running": self.running_count,
            **self._runner.metrics.report(),
        }
        self.log.debug("metrics", **report)
        await self._reporter.report(report)
