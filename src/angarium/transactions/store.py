"""Stores transactions: each method is one item of a batched transition, or one call.

Only this file turns the replies of these transitions into results or errors. It makes no decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from angarium.runtime.batching import Batcher
from angarium.runtime.errors import LimitExceeded
from angarium.runtime.runtime import Runtime
from angarium.transactions import keys, maintenance
from angarium.transactions import transitions as declared
from angarium.transactions.errors import (
    NotDead,
    PipelineUnknown,
    QuotaExceeded,
    TransactionFinished,
    TransactionQueueFull,
    TransactionUnknown,
)
from angarium.transactions.limits import TransactionsLimits
from angarium.transactions.model import (
    PollResult,
    TakenTransaction,
    Transaction,
    TransactionStart,
    TransactionStarted,
    encode_step_types,
    external_route,
    new_transaction_id,
    pairs_of,
    route_of,
    transaction_of,
)
from angarium.transactions.node_work import (
    DequeueBatch,
    NodeCapabilities,
    NodeWork,
    RecoveryResult,
    taken_of,
)
from angarium.transactions.settings import TransactionsSettings

RECOVER_COUNT = 200
EXPIRE_COUNT = 200


class TransactionStore:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._settings = runtime.settings.group(TransactionsSettings)
        limits = runtime.settings.limits_of(TransactionsLimits)
        self._data_bytes_max = limits.transaction_data_bytes_max
        self._switches_max = limits.transaction_switches_items_max
        self._queue_max = limits.transaction_queue_items_max
        self.partitions = range(runtime.settings.partitions)
        channel = runtime.keyspace.global_name
        self.notify_channel = channel(keys.TRANSACTIONS_NOTIFY)
        self.events_channel = channel(keys.TRANSACTIONS_EVENTS)
        self.work_channel = channel(keys.TRANSACTIONS_WORK)
        self._archive_ms = self._settings.delay_before_archiving * 1000
        self._timeout_ms = self._settings.transaction_timeout_ms

        external_ms = self._settings.externalid_uniqueness_period * 1000
        self._dead_ms = self._settings.dead_letter_retention * 1000
        # The rest is for what else the parent's data has.
        children_max = self._data_bytes_max // 2
        given = self._settings
        self._has_quotas = bool(
            given.quotas or given.quota_starts_per_s or given.quota_stored_bytes
        )
        self._ending = ending = declared.EndArgs(self._archive_ms, self._dead_ms, children_max)
        batch = runtime.batch
        self._enqueue = batch(
            declared.ENQUEUE, declared.StartArgs(external_ms, self._timeout_ms, self._queue_max)
        )
        self._get = batch(declared.GET_STATES)
        self._cancel = batch(declared.CANCEL, ending)
        self._switch = batch(declared.SET_SWITCHES, declared.SwitchArgs(self._switches_max))
        self._replied = batch(declared.RECORD_REPLIES)
        self._complete = batch(declared.COMPLETE, ending)
        self._checkpoint = batch(declared.CHECKPOINT)
        self._sleep = batch(declared.SLEEP)
        self._progress = batch(declared.REPORT_PROGRESS)
        self._return = batch(declared.RETURN)
        self._hand_over = batch(declared.HAND_OVER)
        self._rerun = batch(declared.RERUN, declared.RerunArgs(self._timeout_ms))
        self._drop = batch(declared.DROP, ending)

    def partition_of(self, transaction_id: str) -> int:
        if len(self.partitions) == 1:
            return 0
        return self._runtime.keyspace.partition_of(route_of(transaction_id))

    # Clients

    async def start(self, start: TransactionStart) -> TransactionStarted:
        """Start a transaction, or return the first one of its externalId. A refused start stores
        nothing."""
        external = start.external_id or None
        size = len(start.data) + len(start.metadata)
        if size > self._data_bytes_max:
            raise LimitExceeded("transaction_data_bytes_max", size, self._data_bytes_max)
        id = new_transaction_id(start.owner, external)
        version = "" if start.version is None else start.version
        kind = f"{start.pipeline}|{version}|{start.owner}{self._quota(start.owner)}"
        if start.is_plain:
            item = declared.StartItem(id, kind, start.data)
        else:
            item = declared.StartItem(
                id, kind, start.data, external or "", start.metadata, start.webhook or "",
                start.options,
            )  # fmt: skip
        reply = await self._enqueue.submit(self.partition_of(id), item, None, size)
        if reply == "started":
            return TransactionStarted(id)
        if isinstance(reply, declared.DuplicateStart):
            return TransactionStarted(reply.transaction_id, duplicate=True)
        if reply == "unknown_pipeline":
            raise PipelineUnknown(f"there is no pipeline {start.pipeline!r}")
        if reply == "unknown_version":
            raise PipelineUnknown(f"pipeline {start.pipeline!r} has no version {start.version}")
        if reply == "queue_full":
            raise TransactionQueueFull("transaction_queue_items_max", self._queue_max)
        if reply == "too_many_starts":
            raise QuotaExceeded(f"{start.owner!r} starts more than its quota; try again later")
        if reply == "too_many_bytes":
            raise QuotaExceeded(
                f"the transactions of {start.owner!r} store as much as its quota allows; some must "
                "end and be archived first"
            )
        # already_queued or exists: this process generated the id, so an earlier attempt of this
        # call arrived.
        return TransactionStarted(id)

    def _quota(self, owner: str) -> str:
        """The share of one partition, as the kind of a start has it; without a quota nothing."""
        if not self._has_quotas:
            return ""
        starts_per_s, stored_bytes = self._settings.quota_of(owner)
        count = len(self.partitions)
        return f"|{-(-starts_per_s // count)}|{-(-stored_bytes // count)}"

    async def find(self, transaction_id: str) -> Transaction | None:
        """The state in Redis."""
        found = await self._state(transaction_id)
        return None if found is None else transaction_of(transaction_id, found[1])

    async def poll(self, transaction_id: str) -> PollResult | None:
        """The state in Redis, for a client that waits for the end. The first result with a final
        status gets `notified_ms`."""
        state = await self._state(transaction_id)
        if state is None:
            return None
        now_ms, fields = state
        found = transaction_of(transaction_id, fields)
        if not found.status.final or found.notified_ms is not None:
            return PollResult(found)
        dated = msgspec.structs.replace(found, notified_ms=now_ms)
        return PollResult(dated, must_record=True)

    async def record_reply(self, transaction: Transaction) -> str:
        """Record that a response with the final status was written to a client."""
        item = declared.ReplyItem(transaction.id, str(transaction.notified_ms or 0))
        return await self._send(self._replied, item)

    async def _state(self, transaction_id: str) -> tuple[int, Mapping[bytes, bytes]] | None:
        partition = self.partition_of(transaction_id)
        reply = await self._get.submit(partition, declared.TransactionItem(transaction_id))
        if isinstance(reply, str):
            return None
        fields = pairs_of(reply.fields)
        # 0.1.0 may have left a hash with only a reply's note after the state was archived.
        return (reply.now_ms, fields) if b"created" in fields else None

    async def find_by_external_id(self, owner: str, external_id: str) -> str | None:
        space = self._runtime.keyspace
        partition = space.partition_of(external_route(owner, external_id))
        name = space.name(keys.EXTERNAL_ID, partition, f"{owner}|{external_id}")
        found = await self._runtime.redis.call("GET", name, key=name)
        return None if found is None else found.decode()

    async def cancel(self, transaction_id: str) -> str:
        """`cancelled`, or `cancelling` while a node still runs it."""
        reply = await self._send(self._cancel, declared.TransactionItem(transaction_id))
        return self._raise_refusal(transaction_id, reply)

    async def set_switch(self, transaction_id: str, switch: str, value: str) -> str:
        """`woken`, or `set` if the transaction does not sleep until this switch."""
        item = declared.SwitchItem(transaction_id, switch, value)
        reply = await self._send(self._switch, item)
        if reply == "too_many":
            most = self._switches_max
            raise LimitExceeded("transaction_switches_items_max", most + 1, most)
        return self._raise_refusal(transaction_id, reply)

    def _raise_refusal(self, transaction_id: str, status: str) -> str:
        if status == "no_state":
            raise TransactionUnknown(f"there is no transaction {transaction_id!r} in progress")
        if status == "finished":
            raise TransactionFinished(f"transaction {transaction_id!r} has ended already")
        if status == "not_dead":
            raise NotDead(f"transaction {transaction_id!r} is not a dead letter")
        return status

    async def rerun(self, transaction_id: str, data: bytes = b"") -> str:
        """Queue a dead letter again at the step that failed, with new data if it is given."""
        if len(data) > self._data_bytes_max:
            raise LimitExceeded("transaction_data_bytes_max", len(data), self._data_bytes_max)
        item = declared.RerunItem(transaction_id, data)
        reply = await self._send(self._rerun, item, data)
        if reply == "unknown_version":
            raise PipelineUnknown(f"the pipeline of {transaction_id!r} has lost this version")
        return self._raise_refusal(transaction_id, reply)

    async def drop(self, transaction_id: str) -> str:
        """Give up a dead letter. It is archived."""
        reply = await self._send(self._drop, declared.TransactionItem(transaction_id))
        return self._raise_refusal(transaction_id, reply)

    # Nodes

    async def dequeue(
        self,
        partition: int,
        node: str,
        groups: Sequence[str],
        count: int,
        capabilities: NodeCapabilities,
    ) -> DequeueBatch:
        """Take up to `count` transactions whose next step the node has."""
        able = capabilities
        args = declared.DequeueArgs(
            node, count, able.step_types, able.pipelines, able.waiting, able.plain_types,
            able.threads, able.alone,
        )  # fmt: skip
        found: declared.Dequeued = await self._runtime.call(
            declared.DEQUEUE, partition, args, _groups(groups)
        )
        taken = [taken_of(row) for row in found.taken]
        return DequeueBatch(taken, found.refused, found.waiting, found.more)

    def complete_soon(
        self,
        taken: TakenTransaction,
        status: str,
        output: bytes = b"",
        note: str = "",
        reason: str = "",
    ) -> asyncio.Future[str]:
        """Add the completion to the next batch. The future gets the script's reply. With a
        `reason`, the transaction is a dead letter."""
        ending = f"{status}|{taken.run}|{taken.flags}|{reason}|{taken.label}"
        item = declared.CompleteItem(taken.id, taken.processing_score, ending, output, note)
        return self._complete.submit(self.partition_of(taken.id), item, None, len(output))

    async def complete(
        self,
        taken: TakenTransaction,
        status: str,
        output: bytes = b"",
        note: str = "",
        reason: str = "",
    ) -> str:
        return await self.complete_soon(taken, status, output, note, reason)

    async def checkpoint(self, transaction_id: str, run: str, step: int, checkpoint: bytes) -> str:
        item = declared.CheckpointItem(transaction_id, run, str(step), checkpoint)
        return await self._send(self._checkpoint, item, checkpoint)

    async def sleep(
        self,
        transaction_id: str,
        run: str,
        checkpoint: bytes,
        sleep_ms: int | None,
        switch: str | None,
    ) -> str:
        wait = "" if sleep_ms is None else str(sleep_ms)
        item = declared.SleepItem(transaction_id, run, checkpoint, wait, switch or "")
        return await self._send(self._sleep, item, checkpoint)

    async def record_failed_try(
        self, taken: TakenTransaction, checkpoint: bytes, sleep_ms: int, tries: int, error: str
    ) -> str:
        """Store that the current step has failed `tries` times, and sleep before the next try."""
        item = declared.SleepItem(
            taken.id, taken.run, checkpoint, str(sleep_ms), "", str(tries), error
        )
        return await self._send(self._sleep, item, checkpoint)

    async def report_progress(self, transaction_id: str, run: str, report: bytes) -> str:
        item = declared.ProgressItem(transaction_id, run, report)
        return await self._send(self._progress, item, report)

    async def return_to_queue(self, transaction_id: str, run: str) -> str:
        return await self._send(self._return, declared.RunItem(transaction_id, run))

    async def hand_over(
        self,
        transaction_id: str,
        run: str,
        step: int,
        checkpoint: bytes,
        step_type: str,
        *,
        missing: bool = True,
    ) -> str:
        """Queue it for a node that can run the step. Returns `waits`, or why it was refused.
        `missing`: this node lacks the step; else it has no free thread."""
        item = declared.HandOverItem(transaction_id, run, str(step), checkpoint, step_type, missing)
        return await self._send(self._hand_over, item, checkpoint)

    async def call_children(
        self, transaction_id: str, run: str, step: int, checkpoint: bytes, pipeline: str,
        data: Sequence[bytes],
    ) -> str:  # fmt: skip
        args = declared.CallChildrenArgs(
            transaction_id, run, checkpoint, pipeline, self._timeout_ms, step
        )
        items = [declared.ChildItem(each) for each in data]
        partition = self.partition_of(transaction_id)
        return str(await self._runtime.call(declared.CALL_CHILDREN, partition, args, items))

    async def expire_waiting(self, partition: int) -> int:
        """End transactions that waited for a step type past their deadline. Returns the number."""
        args, ended = maintenance.ExpireArgs(*self._ending, EXPIRE_COUNT), 0
        while True:
            found = await self._runtime.call(maintenance.EXPIRE_WAITING, partition, args)
            ended += int(found.number)
            if found.number < EXPIRE_COUNT:
                return ended

    async def wake_due(self, partition: int, count: int) -> int:
        """Queue up to `count` sleeping transactions whose time has come. Returns the number."""
        args = maintenance.WakeArgs(count)
        found = await self._runtime.call(maintenance.WAKE, partition, args, durable=False)
        return int(found.number)

    async def touch_node(
        self,
        partition: int,
        node: str,
        groups: Sequence[str] = (),
        step_types: Sequence[str] = (),
        *,
        leaving: bool = False,
    ) -> int:
        """Send a heartbeat. Returns the Redis time, or 0 if the node leaves."""
        args = maintenance.TouchArgs(
            node, leaving, encode_step_types(step_types), self._settings.node_fair_owners
        )
        found = await self._runtime.call(
            maintenance.TOUCH_NODE, partition, args, _groups(groups), durable=False
        )
        return 0 if found == "left" else int(found.now_ms)

    async def recover(self, partition: int, node: str, work: NodeWork) -> RecoveryResult:
        """Queue again what silent nodes took, and what a lost reply assigned to this node."""
        recovered, offset = 0, 0
        to_cancel: list[str] = []
        dead: list[str] = []
        items = [declared.TransactionItem(each) for each in work.ids]
        timeout_ms = self._settings.node_timeout_ms
        while offset >= 0:
            args = maintenance.RecoverArgs(
                node, timeout_ms, offset, RECOVER_COUNT, work.as_of_ms, work.recovers_others,
                self._settings.max_runs, *self._ending,
            )  # fmt: skip
            found = await self._runtime.call(maintenance.RECOVER, partition, args, items)
            recovered, offset = recovered + found.number, found.offset
            to_cancel += found.to_cancel
            dead += found.dead
        return RecoveryResult(recovered, to_cancel, [*zip(dead[::2], dead[1::2], strict=True)])

    async def _send(self, batcher: Batcher[Any, Any], item: Any, data: bytes = b"") -> str:
        """Calls for one transaction take effect in the order in which they are made."""
        id: str = item.transaction_id
        return str(await batcher.submit(self.partition_of(id), item, id, len(data)))


def _groups(groups: Sequence[str]) -> list[declared.GroupItem]:
    return [declared.GroupItem(each) for each in groups]
