"""The transitions of a transaction. Each call is one item of a batched script, or one script.

Only this file turns the statuses of these scripts into results or errors. It makes no decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from angarium.redis.connection import Argument
from angarium.redis.scripts import Script
from angarium.runtime.batching import Batcher, BatchItem
from angarium.runtime.errors import LimitExceeded
from angarium.runtime.key import Key
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script, status_of
from angarium.transactions import keys as transactions_keys
from angarium.transactions.errors import PipelineUnknown, TransactionFinished, TransactionUnknown
from angarium.transactions.limits import TransactionsLimits
from angarium.transactions.model import (
    PollResult,
    TakenTransaction,
    Transaction,
    TransactionStart,
    TransactionStarted,
    external_route,
    new_transaction_id,
    pairs_of,
    transaction_of,
)
from angarium.transactions.settings import TransactionsSettings
from angarium.transactions.store.keys import TransactionKeys


def _script(name: str) -> Script:
    return load_script("angarium.transactions", name)


ENQUEUE, DEQUEUE = _script("enqueue_transactions"), _script("dequeue_transactions")
COMPLETE, CANCEL = _script("complete_transactions"), _script("cancel_transactions")
CHECKPOINT, SLEEP = _script("checkpoint_transactions"), _script("sleep_transactions")
WAKE, SET_SWITCHES = _script("wake_transactions"), _script("set_switches")
REPORT_PROGRESS, RETURN = _script("report_progress"), _script("return_transactions")
RECOVER, TOUCH_NODE = _script("recover_orphans"), _script("touch_node")
CALL_CHILDREN, HAND_OVER = _script("call_children"), _script("hand_over_transactions")
EXPIRE_WAITING = _script("expire_waiting")
GET_STATES, RECORD_REPLIES = _script("get_states"), _script("record_replies")
RECOVER_COUNT = 200
EXPIRE_COUNT = 200


@dataclass(frozen=True)
class NodeWork:
    """The transactions that a node runs, as of the Redis time `as_of_ms`. `recovers_others`: the
    node has sent heartbeats for long enough to tell a silent node from a silent Redis."""

    ids: Sequence[str]
    as_of_ms: int
    recovers_others: bool = True


@dataclass(frozen=True)
class RecoveryResult:
    """The number of transactions queued again, and those of this node that must be cancelled."""

    count: int
    to_cancel: Sequence[str]


@dataclass(frozen=True)
class NodeCapabilities:
    """What a node can run, encoded by `encode_step_types`. The script need not check the steps of
    `pipelines` («name|version»). `waiting`: also take transactions that wait for a step type."""

    step_types: str
    pipelines: str = ""
    waiting: bool = True


@dataclass(frozen=True)
class DequeueBatch:
    """The result of one dequeue. `refused` entries of the queues could not run. `waiting` ones now
    wait for a node that has their next step."""

    taken: list[TakenTransaction]
    refused: int
    waiting: int = 0

    @property
    def entries(self) -> int:
        return len(self.taken) + self.refused + self.waiting


class TransactionStore:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._settings = runtime.settings.group(TransactionsSettings)
        limits = runtime.settings.limits_of(TransactionsLimits)
        self._data_bytes_max = limits.transaction_data_bytes_max
        self._switches_max = limits.transaction_switches_items_max
        self.keys = TransactionKeys(runtime)
        self._archive_ms = self._settings.delay_before_archiving * 1000
        self._timeout_ms = self._settings.transaction_timeout_ms

        self._batch_starts_and_ends()
        self._batch_steps()
        self._get = runtime.batched(GET_STATES, lambda _: ())

    def _batch_starts_and_ends(self) -> None:
        keys, archive_ms = self.keys, self._archive_ms
        self._enqueue = self._batched(
            ENQUEUE,
            self._with_statistics(
                ("stem", transactions_keys.QUEUE_IN),
                ("stem", transactions_keys.QUEUE_ADMIN),
                ("stem", transactions_keys.PIPELINE),
            ),
            self._settings.externalid_uniqueness_period * 1000,
            self._timeout_ms,
        )
        self._complete = self._batched(COMPLETE, keys.ending, archive_ms)
        self._cancel = self._batched(CANCEL, keys.ending_queued, archive_ms)
        self._replied = self._batched(
            RECORD_REPLIES, self._with_statistics(("name", transactions_keys.WEBHOOKS))
        )

    def _batch_steps(self) -> None:
        keys = self.keys
        self._checkpoint = self._batched(CHECKPOINT, self._with_statistics())
        self._sleep = self._batched(
            SLEEP,
            self._with_statistics(
                ("name", transactions_keys.PROCESSING),
                ("name", transactions_keys.SLEEPING),
                ("stem", transactions_keys.QUEUE_OUT),
            ),
        )
        self._switch = self._batched(
            SET_SWITCHES,
            self._with_statistics(
                ("name", transactions_keys.SLEEPING), ("stem", transactions_keys.QUEUE_OUT)
            ),
            self._switches_max,
        )
        self._progress = self._batched(
            REPORT_PROGRESS, self._with_statistics(("name", transactions_keys.WEBHOOKS))
        )
        self._return = self._batched(
            RETURN,
            lambda partition: [
                *keys.statistics(partition),
                keys.name(transactions_keys.PROCESSING, partition),
                *keys.queue_stems(partition),
            ],
        )
        self._hand_over = self._batched(
            HAND_OVER,
            self._with_statistics(
                ("name", transactions_keys.PROCESSING), ("stem", transactions_keys.WAITING)
            ),
        )

    def _batched(
        self, script: Script, names: Callable[[int], Sequence[str]], *more: int
    ) -> Batcher[BatchItem, Any]:
        by_partition = [names(partition) for partition in self.keys.partitions]
        channels = self.keys.channels
        return self._runtime.batched(script, by_partition.__getitem__, (*channels, *more))

    def _with_statistics(self, *kinds: tuple[str, Key]) -> Callable[[int], Sequence[str]]:
        keys = self.keys

        def names(partition: int) -> Sequence[str]:
            return [
                *keys.statistics(partition),
                *(
                    keys.stem(key, partition) if kind == "stem" else keys.name(key, partition)
                    for kind, key in kinds
                ),
            ]

        return names

    # Clients

    async def start(self, start: TransactionStart) -> TransactionStarted:
        """Start a transaction, or return the first one of its externalId. A refused start stores
        nothing."""
        keys, external = self.keys, start.external_id or None
        size = len(start.data) + len(start.metadata)
        if size > self._data_bytes_max:
            raise LimitExceeded("transaction_data_bytes_max", size, self._data_bytes_max)
        id = new_transaction_id(start.owner, external)
        partition = keys.partition_of(id)
        state = keys.state(partition, id)
        version = "" if start.version is None else start.version
        kind = f"{start.pipeline}|{version}|{start.owner}"
        item: BatchItem
        if start.is_plain:
            item = ((state,), (id, kind, start.data, ""))
        else:
            names = [state]
            if external is not None:
                name = keys.name(
                    transactions_keys.EXTERNAL_ID, partition, f"{start.owner}|{external}"
                )
                names.append(name)
            more = (external or "", start.metadata, start.webhook or "", start.options)
            item = (tuple(names), (id, kind, start.data, "more", *more))
        reply = await self._enqueue.submit(partition, item, None, size)
        if reply == b"started":
            return TransactionStarted(id)
        match status_of(reply):
            case "duplicate":
                return TransactionStarted(reply[1].decode(), duplicate=True)
            case "already_queued" | "exists":
                # This process generated the id, so an earlier attempt of this call arrived.
                return TransactionStarted(id)
            case "unknown_version":
                raise PipelineUnknown(f"pipeline {start.pipeline!r} has no version {start.version}")
        raise PipelineUnknown(f"there is no pipeline {start.pipeline!r}")

    async def find(self, transaction_id: str) -> Transaction | None:
        """The state in Redis."""
        fields = await self._fields(transaction_id)
        return transaction_of(transaction_id, fields) if b"created" in fields else None

    async def poll(self, transaction_id: str) -> PollResult | None:
        """The state in Redis, for a client that waits for the end. The first result with a final
        status gets `notified_ms`."""
        fields = await self._fields(transaction_id)
        if b"created" not in fields:
            return None
        found = transaction_of(transaction_id, fields)
        if not found.status.final or found.notified_ms is not None:
            return PollResult(found)
        dated = msgspec.structs.replace(found, notified_ms=int(fields[b"now"]))
        return PollResult(dated, must_record=True)

    async def record_reply(self, transaction: Transaction) -> str:
        """Record that a response with the final status was written to a client."""
        return await self._send(self._replied, transaction.id, transaction.notified_ms or 0)

    async def _fields(self, transaction_id: str) -> dict[bytes, bytes]:
        partition = self.keys.partition_of(transaction_id)
        item: BatchItem = ((self.keys.state(partition, transaction_id),), (transaction_id,))
        # 0.1.0 may have left a hash with only a reply's note after the state was archived.
        return pairs_of(await self._get.submit(partition, item))

    async def find_by_external_id(self, owner: str, external_id: str) -> str | None:
        partition = self.keys.route_partition(external_route(owner, external_id))
        name = self.keys.name(transactions_keys.EXTERNAL_ID, partition, f"{owner}|{external_id}")
        found = await self._runtime.redis.call("GET", name, key=name)
        return None if found is None else found.decode()

    async def cancel(self, transaction_id: str) -> str:
        """`cancelled`, or `cancelling` while a node still runs it."""
        return self._raise_refusal(transaction_id, await self._send(self._cancel, transaction_id))

    async def set_switch(self, transaction_id: str, switch: str, value: str) -> str:
        """`woken`, or `set` if the transaction does not sleep until this switch."""
        reply = await self._send(self._switch, transaction_id, switch, value)
        if reply == "too_many":
            most = self._switches_max
            raise LimitExceeded("transaction_switches_items_max", most + 1, most)
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
        keys = self.keys
        names = [
            *keys.statistics(partition),
            keys.stem(transactions_keys.STATE, partition),
            keys.name(transactions_keys.PROCESSING, partition),
            keys.name(transactions_keys.NODES, partition),
            keys.stem(transactions_keys.PIPELINE, partition),
            keys.stem(transactions_keys.WAITING, partition),
            *keys.queues(partition, groups),
        ]
        args: list[Argument] = [
            *keys.channels, node, count, capabilities.step_types, capabilities.pipelines,
            "all" if capabilities.waiting else "queues", len(groups), *groups,
        ]  # fmt: skip
        replies = await self._runtime.run(DEQUEUE, partition, names, args)
        taken = [_taken(reply) for reply in replies if reply[0] == b"taken"]
        waiting = sum(reply[0] == b"waits" for reply in replies) if len(taken) < len(replies) else 0
        return DequeueBatch(taken, len(replies) - len(taken) - waiting, waiting)

    def complete_soon(
        self, taken: TakenTransaction, status: str, output: bytes = b"", note: str = ""
    ) -> asyncio.Future[bytes]:
        """Add the completion to the next batch. The future gets the script's status."""
        id = taken.id
        partition = self.keys.partition_of(id)
        ending = f"{status}|{taken.run}|{taken.flags}|{taken.label}"
        item: BatchItem = (
            (self.keys.state(partition, id),),
            (id, taken.processing_score, ending, output, note),
        )
        return self._complete.submit(partition, item, None, len(output))

    async def complete(
        self, taken: TakenTransaction, status: str, output: bytes = b"", note: str = ""
    ) -> str:
        return status_of(await self.complete_soon(taken, status, output, note))

    async def checkpoint(self, transaction_id: str, run: str, step: int, checkpoint: bytes) -> str:
        return await self._send(self._checkpoint, transaction_id, run, step, checkpoint)

    async def sleep(
        self,
        transaction_id: str,
        run: str,
        checkpoint: bytes,
        sleep_ms: int | None,
        switch: str | None,
    ) -> str:
        wait = "" if sleep_ms is None else sleep_ms
        return await self._send(self._sleep, transaction_id, run, checkpoint, wait, switch or "")

    async def report_progress(self, transaction_id: str, run: str, report: bytes) -> str:
        return await self._send(self._progress, transaction_id, run, report)

    async def return_to_queue(self, transaction_id: str, run: str) -> str:
        return await self._send(self._return, transaction_id, run)

    async def hand_over(
        self, transaction_id: str, run: str, step: int, checkpoint: bytes, step_type: str
    ) -> str:
        """Queue it for a node that has the step. Returns `waits`, or why it was refused."""
        return await self._send(self._hand_over, transaction_id, run, step, checkpoint, step_type)

    async def expire_waiting(self, partition: int) -> int:
        """End transactions that waited for a step type past their deadline. Returns the number."""
        names, ended = self.keys.ending_queued(partition), 0
        args = (*self.keys.channels, self._archive_ms, EXPIRE_COUNT)
        while True:
            found = int(await self._runtime.run(EXPIRE_WAITING, partition, names, args))
            ended += found
            if found < EXPIRE_COUNT:
                return ended

    async def call_children(
        self, transaction_id: str, run: str, step: int, checkpoint: bytes, pipeline: str,
        data: Sequence[bytes],
    ) -> str:  # fmt: skip
        keys = self.keys
        partition = keys.partition_of(transaction_id)
        names = [
            *keys.statistics(partition),
            keys.name(transactions_keys.PROCESSING, partition),
            keys.name(transactions_keys.SLEEPING, partition),
            keys.stem(transactions_keys.QUEUE_IN, partition),
            keys.stem(transactions_keys.PIPELINE, partition),
            keys.stem(transactions_keys.STATE, partition),
            keys.state(partition, transaction_id),
        ]
        args: list[Argument] = [
            *keys.channels, transaction_id, run, checkpoint, pipeline, self._timeout_ms, step,
            len(data), *data,
        ]  # fmt: skip
        return status_of(await self._runtime.run(CALL_CHILDREN, partition, names, args))

    async def wake_due(self, partition: int, count: int) -> int:
        """Queue up to `count` sleeping transactions whose time has come. Returns the number."""
        keys = self.keys
        names = [
            *keys.statistics(partition),
            keys.stem(transactions_keys.STATE, partition),
            keys.name(transactions_keys.SLEEPING, partition),
            keys.stem(transactions_keys.QUEUE_OUT, partition),
        ]
        args = (*keys.channels, count)
        return int(await self._runtime.run(WAKE, partition, names, args, durable=False))

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
        names = [
            *self.keys.statistics(partition),
            self.keys.name(transactions_keys.NODES, partition),
            self.keys.name(transactions_keys.STEP_TYPES, partition),
            self.keys.stem(transactions_keys.WAITING, partition),
            *self.keys.queues(partition, groups),
        ]
        what = "leaving" if leaving else "here"
        args: list[Argument] = [
            *self.keys.channels, node, what, len(groups), len(step_types), *groups, *step_types,
        ]  # fmt: skip
        reply = await self._runtime.run(TOUCH_NODE, partition, names, args, durable=False)
        return 0 if leaving else int(reply)

    async def recover(self, partition: int, node: str, work: NodeWork) -> RecoveryResult:
        """Queue again what silent nodes took, and what a lost reply assigned to this node."""
        keys, recovered, offset = self.keys, 0, 0
        to_cancel: list[str] = []
        names = [
            *keys.statistics(partition),
            keys.stem(transactions_keys.STATE, partition),
            keys.name(transactions_keys.PROCESSING, partition),
            keys.name(transactions_keys.NODES, partition),
            *keys.queue_stems(partition),
        ]
        while offset >= 0:
            args: list[Argument] = [
                *keys.channels, node, self._settings.node_timeout_ms, offset, RECOVER_COUNT,
                work.as_of_ms, "all" if work.recovers_others else "own", len(work.ids), *work.ids,
            ]  # fmt: skip
            found, offset, cancels = await self._runtime.run(RECOVER, partition, names, args)
            recovered += found
            to_cancel += [id.decode() for id in cancels]
        return RecoveryResult(recovered, to_cancel)

    async def _send(
        self, batcher: Batcher[BatchItem, Any], transaction_id: str, *args: str | int | bytes
    ) -> str:
        partition = self.keys.partition_of(transaction_id)
        item: BatchItem = (
            (self.keys.state(partition, transaction_id),),
            (transaction_id, *args),
        )
        size = sum(len(arg) for arg in args if isinstance(arg, bytes))
        return status_of(await batcher.submit(partition, item, transaction_id, size))

    def _raise_refusal(self, transaction_id: str, status: str) -> str:
        if status == "no_state":
            raise TransactionUnknown(f"there is no transaction {transaction_id!r} in progress")
        if status == "finished":
            raise TransactionFinished(f"transaction {transaction_id!r} has ended already")
        return status


def _taken(reply: list[Any]) -> TakenTransaction:
    id, run, score, label, version, data, remaining_ms = reply[1:8]
    taken = TakenTransaction(
        id.decode(), run.decode(), score, label.decode(), version.decode(), data, remaining_ms
    )
    if len(reply) > 8:
        taken.external_id = reply[8].decode()
        taken.checkpoint = reply[9]
        taken.cancel = bool(reply[10])
        taken.switches, taken.metadata = reply[11], reply[12]
        taken.children = reply[14:]
        checkpoint, children = "f" if taken.checkpoint else "", "c" if taken.children else ""
        taken.flags = f"{checkpoint}{reply[13].decode()}{children}"
    return taken
