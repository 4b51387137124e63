"""The life of a transaction as calls: each is one item of a batched script, or one script.

Statuses become results or errors here and nowhere else. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from angarium.redis.connection import Argument
from angarium.redis.scripts import Script
from angarium.runtime import keyspace as keys
from angarium.runtime.batching import Batcher, BatchItem
from angarium.runtime.errors import LimitExceeded
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script, status_of
from angarium.transactions.errors import PipelineUnknown, TransactionFinished, TransactionUnknown
from angarium.transactions.model import (
    Polled,
    Start,
    Started,
    Taken,
    Transaction,
    external_route,
    new_transaction_id,
    pairs_of,
    transaction_of,
)
from angarium.transactions.store.places import Places


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
class Held:
    """What a node has in hand, as of a moment that Redis told; `judges`: it has been in contact
    for long enough to tell a silent node from a silent Redis."""

    ids: Sequence[str]
    as_of_ms: int
    judges: bool = True


@dataclass(frozen=True)
class Recovered:
    """How many were queued again, and which of ours are to be cancelled."""

    count: int
    to_cancel: Sequence[str]


@dataclass(frozen=True)
class Able:
    """What a node can run, in the words of `step_words`. `pipelines` («name|version») saves a look
    at their steps; `waiting`: whether it asks for those that wait for a step type too."""

    step_types: str
    pipelines: str = ""
    waiting: bool = True


@dataclass(frozen=True)
class Haul:
    """What a node took. `refused` entries were in a queue but could not be run; `waiting` ones
    wait now for a node that has their next step."""

    taken: list[Taken]
    refused: int
    waiting: int = 0

    @property
    def entries(self) -> int:
        return len(self.taken) + self.refused + self.waiting


class TransactionStore:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._settings = runtime.settings.transactions
        self._data_bytes_max = runtime.settings.limits.transaction_data_bytes_max
        self._switches_max = runtime.settings.limits.transaction_switches_items_max
        self.places = places = Places(runtime)
        self._archive_ms = archive_ms = self._settings.delay_before_archiving * 1000
        self._timeout_ms = self._settings.transaction_timeout_ms

        def batched(
            script: Script,
            names: Callable[[int], Sequence[str]],
            *more: int,
        ) -> Batcher[BatchItem, Any]:
            known = [names(partition) for partition in places.partitions]
            return runtime.batched(script, known.__getitem__, (*places.channels, *more))

        def with_statistics(*kinds: tuple[str, keys.Key]) -> Callable[[int], Sequence[str]]:
            def names(partition: int) -> Sequence[str]:
                return [
                    *places.statistics(partition),
                    *(
                        places.stem(key, partition)
                        if kind == "stem"
                        else places.name(key, partition)
                        for kind, key in kinds
                    ),
                ]

            return names

        self._enqueue = batched(
            ENQUEUE,
            with_statistics(
                ("stem", keys.QUEUE_IN), ("stem", keys.QUEUE_ADMIN), ("stem", keys.PIPELINE)
            ),
            self._settings.externalid_uniqueness_period * 1000,
            self._timeout_ms,
        )
        self._complete = batched(COMPLETE, places.ending, archive_ms)
        self._cancel = batched(CANCEL, places.ending_queued, archive_ms)
        self._checkpoint = batched(CHECKPOINT, with_statistics())
        self._sleep = batched(
            SLEEP,
            with_statistics(
                ("name", keys.PROCESSING), ("name", keys.SLEEPING), ("stem", keys.QUEUE_OUT)
            ),
        )
        self._switch = batched(
            SET_SWITCHES,
            with_statistics(("name", keys.SLEEPING), ("stem", keys.QUEUE_OUT)),
            self._switches_max,
        )
        self._progress = batched(REPORT_PROGRESS, with_statistics(("name", keys.WEBHOOKS)))
        self._return = batched(
            RETURN,
            lambda partition: [
                *places.statistics(partition),
                places.name(keys.PROCESSING, partition),
                *places.queue_stems(partition),
            ],
        )
        self._hand_over = batched(
            HAND_OVER, with_statistics(("name", keys.PROCESSING), ("stem", keys.WAITING))
        )
        self._get = runtime.batched(GET_STATES, lambda _: ())
        self._replied = batched(RECORD_REPLIES, with_statistics(("name", keys.WEBHOOKS)))

    # Clients

    async def start(self, start: Start) -> Started:
        """The transaction, or the first one of its externalId; refused, it leaves nothing."""
        places, external = self.places, start.external_id or None
        size = len(start.data) + len(start.metadata)
        if size > self._data_bytes_max:
            raise LimitExceeded("transaction_data_bytes_max", size, self._data_bytes_max)
        id = new_transaction_id(start.owner, external)
        partition = places.partition_of(id)
        state = places.state(partition, id)
        version = "" if start.version is None else start.version
        kind = f"{start.pipeline}|{version}|{start.owner}"
        item: BatchItem
        if start.plain:
            item = ((state,), (id, kind, start.data, ""))
        else:
            names = [state]
            if external is not None:
                name = places.name(keys.EXTERNAL_ID, partition, f"{start.owner}|{external}")
                names.append(name)
            more = (external or "", start.metadata, start.webhook or "", start.options)
            item = (tuple(names), (id, kind, start.data, "more", *more))
        reply = await self._enqueue.submit(partition, item, None, size)
        if reply == b"started":
            return Started(id)
        match status_of(reply):
            case "duplicate":
                return Started(reply[1].decode(), duplicate=True)
            case "already_queued" | "exists":
                return Started(id)  # ids are our own: an earlier sending of this call arrived
            case "unknown_version":
                raise PipelineUnknown(f"pipeline {start.pipeline!r} has no version {start.version}")
        raise PipelineUnknown(f"there is no pipeline {start.pipeline!r}")

    async def find(self, transaction_id: str) -> Transaction | None:
        """As it is in Redis."""
        fields = await self._fields(transaction_id)
        return transaction_of(transaction_id, fields) if b"created" in fields else None

    async def poll(self, transaction_id: str) -> Polled | None:
        """The same for a client that waits for the end: the first answer with it has its date."""
        fields = await self._fields(transaction_id)
        if b"created" not in fields:
            return None
        found = transaction_of(transaction_id, fields)
        if not found.status.final or found.notified_ms is not None:
            return Polled(found)
        dated = msgspec.structs.replace(found, notified_ms=int(fields[b"now"]))
        return Polled(dated, first=True)

    async def record_reply(self, transaction: Transaction) -> str:
        """The answer with its end was written to a client."""
        return await self._send(self._replied, transaction.id, transaction.notified_ms or 0)

    async def _fields(self, transaction_id: str) -> dict[bytes, bytes]:
        partition = self.places.partition_of(transaction_id)
        item: BatchItem = ((self.places.state(partition, transaction_id),), (transaction_id,))
        # A version of 0.1.0 may have left the note of a reply where a state was.
        return pairs_of(await self._get.submit(partition, item))

    async def find_external(self, owner: str, external_id: str) -> str | None:
        partition = self.places.route_partition(external_route(owner, external_id))
        name = self.places.name(keys.EXTERNAL_ID, partition, f"{owner}|{external_id}")
        found = await self._runtime.redis.call("GET", name, key=name)
        return None if found is None else found.decode()

    async def cancel(self, transaction_id: str) -> str:
        """`cancelled`, or `cancelling` when a node has to be told first."""
        return self._changed(transaction_id, await self._send(self._cancel, transaction_id))

    async def set_switch(self, transaction_id: str, switch: str, value: str) -> str:
        """`woken`, or `set` for when it goes to sleep for it."""
        reply = await self._send(self._switch, transaction_id, switch, value)
        if reply == "too_many":
            most = self._switches_max
            raise LimitExceeded("transaction_switches_items_max", most + 1, most)
        return self._changed(transaction_id, reply)

    # Nodes

    async def dequeue(
        self, partition: int, node: str, groups: Sequence[str], count: int, able: Able
    ) -> Haul:
        """Only what the node can go on with is taken."""
        places = self.places
        names = [
            *places.statistics(partition),
            places.stem(keys.STATE, partition),
            places.name(keys.PROCESSING, partition),
            places.name(keys.NODES, partition),
            places.stem(keys.PIPELINE, partition),
            places.stem(keys.WAITING, partition),
            *places.queues(partition, groups),
        ]
        args: list[Argument] = [
            *places.channels, node, count, able.step_types, able.pipelines,
            "all" if able.waiting else "queues", len(groups), *groups,
        ]  # fmt: skip
        replies = await self._runtime.run(DEQUEUE, partition, names, args)
        taken = [_taken(reply) for reply in replies if reply[0] == b"taken"]
        waiting = sum(reply[0] == b"waits" for reply in replies) if len(taken) < len(replies) else 0
        return Haul(taken, len(replies) - len(taken) - waiting, waiting)

    def complete_soon(
        self, taken: Taken, status: str, output: bytes = b"", note: str = ""
    ) -> asyncio.Future[bytes]:
        """For those who need not wait: the word comes with the batch that this end goes in."""
        id = taken.id
        partition = self.places.partition_of(id)
        ending = f"{status}|{taken.run}|{taken.ties}|{taken.label}"
        item: BatchItem = (
            (self.places.state(partition, id),),
            (id, taken.place, ending, output, note),
        )
        return self._complete.submit(partition, item, None, len(output))

    async def complete(self, taken: Taken, status: str, output: bytes = b"", note: str = "") -> str:
        return status_of(await self.complete_soon(taken, status, output, note))

    async def checkpoint(self, transaction_id: str, run: str, step: int, frame: bytes) -> str:
        return await self._send(self._checkpoint, transaction_id, run, step, frame)

    async def sleep(
        self,
        transaction_id: str,
        run: str,
        frame: bytes,
        sleep_ms: int | None,
        switch: str | None,
    ) -> str:
        wait = "" if sleep_ms is None else sleep_ms
        return await self._send(self._sleep, transaction_id, run, frame, wait, switch or "")

    async def report_progress(self, transaction_id: str, run: str, report: bytes) -> str:
        return await self._send(self._progress, transaction_id, run, report)

    async def return_to_queue(self, transaction_id: str, run: str) -> str:
        return await self._send(self._return, transaction_id, run)

    async def hand_over(
        self, transaction_id: str, run: str, step: int, frame: bytes, step_type: str
    ) -> str:
        """To a node that has the step; `waits` when that is done."""
        return await self._send(self._hand_over, transaction_id, run, step, frame, step_type)

    async def expire_waiting(self, partition: int) -> int:
        """End those that waited for a step type until their time was over; how many."""
        names, ended = self.places.ending_queued(partition), 0
        args = (*self.places.channels, self._archive_ms, EXPIRE_COUNT)
        while True:
            found = int(await self._runtime.run(EXPIRE_WAITING, partition, names, args))
            ended += found
            if found < EXPIRE_COUNT:
                return ended

    async def call_children(
        self, transaction_id: str, run: str, step: int, frame: bytes, pipeline: str,
        data: Sequence[bytes],
    ) -> str:  # fmt: skip
        places = self.places
        partition = places.partition_of(transaction_id)
        names = [
            *places.statistics(partition),
            places.name(keys.PROCESSING, partition),
            places.name(keys.SLEEPING, partition),
            places.stem(keys.QUEUE_IN, partition),
            places.stem(keys.PIPELINE, partition),
            places.stem(keys.STATE, partition),
            places.state(partition, transaction_id),
        ]
        args: list[Argument] = [
            *places.channels, transaction_id, run, frame, pipeline, self._timeout_ms, step,
            len(data), *data,
        ]  # fmt: skip
        return status_of(await self._runtime.run(CALL_CHILDREN, partition, names, args))

    async def wake_due(self, partition: int, count: int) -> int:
        """Queue sleepers whose time has come; how many there were, at most `count`."""
        places = self.places
        names = [
            *places.statistics(partition),
            places.stem(keys.STATE, partition),
            places.name(keys.SLEEPING, partition),
            places.stem(keys.QUEUE_OUT, partition),
        ]
        args = (*places.channels, count)
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
        """The time in Redis, as it was then; 0 for one that leaves."""
        names = [
            *self.places.statistics(partition),
            self.places.name(keys.NODES, partition),
            self.places.name(keys.STEP_TYPES, partition),
            self.places.stem(keys.WAITING, partition),
            *self.places.queues(partition, groups),
        ]
        what = "leaving" if leaving else "here"
        args: list[Argument] = [
            *self.places.channels, node, what, len(groups), len(step_types), *groups, *step_types,
        ]  # fmt: skip
        reply = await self._runtime.run(TOUCH_NODE, partition, names, args, durable=False)
        return 0 if leaving else int(reply)

    async def recover(self, partition: int, node: str, held: Held) -> Recovered:
        """Queue again what silent nodes had taken, and what we were given without knowing."""
        places, recovered, offset = self.places, 0, 0
        to_cancel: list[str] = []
        names = [
            *places.statistics(partition),
            places.stem(keys.STATE, partition),
            places.name(keys.PROCESSING, partition),
            places.name(keys.NODES, partition),
            *places.queue_stems(partition),
        ]
        while offset >= 0:
            args: list[Argument] = [
                *places.channels, node, self._settings.node_timeout_ms, offset, RECOVER_COUNT,
                held.as_of_ms, "all" if held.judges else "own", len(held.ids), *held.ids,
            ]  # fmt: skip
            found, offset, cancels = await self._runtime.run(RECOVER, partition, names, args)
            recovered += found
            to_cancel += [id.decode() for id in cancels]
        return Recovered(recovered, to_cancel)

    async def _send(
        self, batcher: Batcher[BatchItem, Any], transaction_id: str, *args: str | int | bytes
    ) -> str:
        partition = self.places.partition_of(transaction_id)
        item: BatchItem = (
            (self.places.state(partition, transaction_id),),
            (transaction_id, *args),
        )
        size = sum(len(arg) for arg in args if isinstance(arg, bytes))
        return status_of(await batcher.submit(partition, item, transaction_id, size))

    def _changed(self, transaction_id: str, status: str) -> str:
        if status == "no_state":
            raise TransactionUnknown(f"there is no transaction {transaction_id!r} in progress")
        if status == "finished":
            raise TransactionFinished(f"transaction {transaction_id!r} has ended already")
        return status


def _taken(reply: list[Any]) -> Taken:
    id, run, place, label, version, data, left_ms = reply[1:8]
    taken = Taken(id.decode(), run.decode(), place, label.decode(), version.decode(), data, left_ms)
    if len(reply) > 8:
        taken.external_id = reply[8].decode()
        taken.frame = reply[9]
        taken.cancel = bool(reply[10])
        taken.switches, taken.metadata = reply[11], reply[12]
        taken.children = reply[14:]
        framed, called = "f" if taken.frame else "", "c" if taken.children else ""
        taken.ties = f"{framed}{reply[13].decode()}{called}"
    return taken
