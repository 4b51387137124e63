"""One instance: claims the keys it owns that have messages, handles and acknowledges the messages.

A message stays in its list until the handler has returned. After a crash, the next owner of the key
takes the message again. Messages of one key are handled one after the other, different keys at the
same time. The instance relies on its keys only while no other instance can consider it silent:
after a long pause it drops the messages it had taken and claims again. It needs no settings, so
it runs inside the ACA-Py plugin as well as in the role `inbox`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from angarium.redis.backoff import Backoff
from angarium.routing.errors import HandlerCancelled, ItemInvalid
from angarium.routing.items import InboundMessage, decode_inbound, id_of, response_to
from angarium.routing.store import FinishedKey, RoutingStore, hinted_partition
from angarium.runtime.clock import Clock
from angarium.runtime.errors import OutcomeUnknown
from angarium.runtime.service import Loop, Service

Handle = Callable[[InboundMessage], Awaitable[Any]]

# Heartbeats in the time after which an instance counts as silent.
HEARTBEATS_PER_TIMEOUT = 5
# The part of that time in which the instance relies on its keys. The rest covers clocks that run
# unevenly and the time between the check and the handler.
OWNERSHIP_PART = 0.9
# Without hints: how soon messages are found, and how soon those of a dead instance.
POLL_S = 0.5
SWEEP_S = 1.0
# Sweeps in a second, over all instances. A sweep looks at every instance, so more are wasted.
SWEEPS_PER_S = 10
# Keys claimed in one call, and messages taken in one call: some milliseconds of handling.
CLAIM_KEYS_MAX = 256
TAKE_MESSAGES_MAX = 512
# Of one key: with more, more messages are handled twice after a fault.
KEY_MESSAGES_MAX = 64
ENDINGS_MAX = 512
# The longest pause between two attempts at a message; its key waits, the others do not.
ATTEMPT_PAUSE_S_MAX = 5.0
REASON_CHARS_MAX = 500


@dataclass(frozen=True)
class ConsumerOptions:
    stale_after_ms: int = 15_000
    handlers: int = 64
    attempts_max: int = 5
    keys_max: int = 512


@dataclass
class ConsumerMetrics:
    handled: int = 0
    failed: int = 0
    dead: int = 0
    released: int = 0
    registered: int = 0


@dataclass(frozen=True)
class _KeyBatch:
    """Messages of one key, in order."""

    partition: int
    recip_key: str
    items: Sequence[bytes]


@dataclass(frozen=True)
class RoutingPass:
    """The result of one pass of a loop; `again` asks for the next pass at once."""

    again: bool = False


@dataclass
class _PartitionState:
    may_have_messages: bool = True
    untaken: list[str] = field(default_factory=list)
    """Keys that are claimed and whose messages are still to be taken."""
    finished: list[FinishedKey] = field(default_factory=list)


class InstanceConsumer(Service):
    """`handle` gets each message; its result is the response to a caller that waits at a relay."""

    def __init__(
        self,
        store: RoutingStore,
        uid: str,
        handle: Handle,
        options: ConsumerOptions,
        *,
        name: str = "inbox",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(name, clock=clock)
        self.uid = uid
        self.metrics = ConsumerMetrics()
        self._store = store
        self._handle = handle
        self._options = options
        self._partitions = [_PartitionState() for _ in range(store.partitions)]
        self._batches: asyncio.Queue[_KeyBatch] = asyncio.Queue()
        self._claimed: set[str] = set()
        # Keys that were claimed again before the reply to their finish arrived.
        self._claimed_again: set[str] = set()
        self._working = 0
        self._owner_until_s = 0.0
        self._next_sweep_s = 0.0
        self._reclaim = True  # a reply was lost or ownership was unsure: ask for claimed keys too
        self._reading: Loop
        self._finishing: Loop
        self._heartbeats: Loop

    # Life ------------------------------------------------------------------------------------

    async def on_start(self) -> None:
        self._reclaim = True
        await self.heartbeat()
        heartbeat_s = self._options.stale_after_ms / 1000 / HEARTBEATS_PER_TIMEOUT
        self._heartbeats = self.loop("heartbeat", self.heartbeat, heartbeat_s, until="stop")
        self._reading = self.loop("read", self.read_once, POLL_S)
        self._finishing = self.loop("finish", self.finish_once, POLL_S, until="stop")
        self.loop("sweep", self.sweep_once, SWEEP_S)
        self.spawn("hints", self._follow_hints)
        self.spawn("handlers", self._handlers)

    async def on_stop(self) -> None:
        """Finish the messages in their handlers; give the others back."""
        await self.passes_ended()
        while not self._batches.empty():
            batch = self._batches.get_nowait()
            self._partitions[batch.partition].finished.append(FinishedKey(batch.recip_key, ()))
        for partition in self._partitions:
            partition.finished += [FinishedKey(key, ()) for key in partition.untaken]
            partition.untaken = []
        while self._working or any(each.finished for each in self._partitions):
            await self.finish_once()
            await self.clock.sleep(0.005)
        await self._store.retire(self.uid)

    @property
    def claimed_keys(self) -> int:
        return len(self._claimed)

    async def heartbeat(self) -> None:
        """Say that the instance is alive; register it where it is unknown or was removed."""
        began_s = self.clock.monotonic()
        if await self._store.touch(self.uid):
            self.metrics.registered += 1
            self._reclaim = True
            self.log.info("registered", uid=self.uid)
        was_owner = self._is_owner
        self._owner_until_s = began_s + self._options.stale_after_ms / 1000 * OWNERSHIP_PART
        if not was_owner and self.ready:
            self._reclaim = True
            self._read_all_partitions()

    async def sweep_once(self) -> RoutingPass:
        """Assign kept messages and the keys of stale instances; skips most passes if many do so."""
        if self.clock.monotonic() < self._next_sweep_s:
            return RoutingPass()
        swept = await self._store.sweep()
        share = max(0, swept.instances - SWEEPS_PER_S) / SWEEPS_PER_S
        self._next_sweep_s = self.clock.monotonic() + SWEEP_S * share
        return RoutingPass(swept.again)

    @property
    def _is_owner(self) -> bool:
        """Whether no other instance can have taken the keys of this one."""
        return self.clock.monotonic() < self._owner_until_s

    # Reading ---------------------------------------------------------------------------------

    async def read_once(self) -> RoutingPass:
        """Claim keys and take their messages, as long as there is space."""
        again, reclaim = False, self._reclaim
        self._reclaim = False
        try:
            for number, partition in enumerate(self._partitions):
                if not self._is_owner:
                    self._reclaim |= reclaim
                    self._heartbeats.wake()
                    return RoutingPass()
                # Each poll reads all partitions; a pass between polls only those with a hint.
                if partition.may_have_messages or partition.untaken or reclaim:
                    again |= await self._read_partition(number, reclaim)
        except BaseException as error:
            # The failed call may have claimed keys, or reclaimed none: the next pass reclaims.
            self._reclaim |= reclaim or isinstance(error, OutcomeUnknown)
            raise
        if not again:
            for partition in self._partitions:
                partition.may_have_messages = True
        return RoutingPass(again)

    async def _read_partition(self, number: int, reclaim: bool) -> bool:
        partition, space = self._partitions[number], self._options.keys_max - len(self._claimed)
        if space <= 0 and not partition.untaken:
            return False  # `finish_once` wakes this loop when there is space
        partition.may_have_messages = False
        wanted = max(0, min(space, CLAIM_KEYS_MAX))
        # Layout `acapy` can't mark claimed keys: a claim returns them again, and first.
        asked = wanted + len(self._claimed) if wanted and self._store.acapy else wanted
        found = await self._store.claim(self.uid, number, asked, again=reclaim)
        if found is None:
            self._heartbeats.wake()  # the instance was removed: register it again
            return False
        keys = [key for key in found.again if key not in self._claimed]
        for key in found.fresh:
            if key in self._claimed:
                # Redis finished it and gave it new messages; the reply to the finish is under way.
                self._claimed_again.add(key)
            else:
                keys.append(key)
        self._claimed.update(keys)
        keys, partition.untaken = partition.untaken + keys, []
        if keys:
            await self._take(number, keys)
        return bool(keys) and len(found.again) + len(found.fresh) >= asked

    async def _take(self, number: int, keys: list[str]) -> None:
        each_max = max(1, min(KEY_MESSAGES_MAX, TAKE_MESSAGES_MAX // len(keys)))
        partition = self._partitions[number]
        try:
            taken = await self._store.take(self.uid, number, keys, each_max)
        except BaseException:
            partition.untaken += keys
            raise
        for key, found in zip(keys, taken, strict=True):
            if found == "later":
                partition.untaken.append(key)
            elif isinstance(found, str):
                self._claimed.discard(key)  # another instance owns it
                self.metrics.released += 1
            elif found:
                self._batches.put_nowait(_KeyBatch(number, key, found))
            else:
                partition.finished.append(FinishedKey(key, ()))
                self._finishing.wake()

    async def _follow_hints(self) -> None:
        async with self._store.message_hints(self.uid) as hints:
            while True:
                batch = await hints.receive()
                if batch.gap:
                    self._read_all_partitions()
                for message in batch.messages:
                    number = hinted_partition(message.payload, len(self._partitions))
                    if number is not None:
                        self._partitions[number].may_have_messages = True
                self._reading.wake()

    def _read_all_partitions(self) -> None:
        for partition in self._partitions:
            partition.may_have_messages = True
        self._reading.wake()

    # Handling --------------------------------------------------------------------------------

    async def _handlers(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._options.handlers):
                group.create_task(self._handler())

    async def _handler(self) -> None:
        while True:
            batch = await self._batches.get()
            self._working += 1
            endings: list[tuple[str, str]] = []
            try:
                await self._handle_batch(batch, endings)
            finally:
                self._working -= 1
                finished = FinishedKey(batch.recip_key, endings)
                self._partitions[batch.partition].finished.append(finished)
                self._finishing.wake()

    async def _handle_batch(self, batch: _KeyBatch, endings: list[tuple[str, str]]) -> None:
        for item in batch.items:
            if not self._may_handle:
                return
            try:
                message = decode_inbound(item, batch.recip_key)
            except ItemInvalid as error:
                self._dead_letter(id_of(item), batch.recip_key, str(error), endings)
                continue
            try:
                answer = await self._call_handler(message)
            except Exception as error:
                failure, answer = await self._try_again(message, error)
                if failure is not None:
                    if not self._may_handle:
                        return
                    self._dead_letter(message.id, batch.recip_key, repr(failure), endings)
                    continue
            if message.txn_id is not None:
                await self._respond(message, answer)
            endings.append((message.id, ""))
            self.metrics.handled += 1

    @property
    def _may_handle(self) -> bool:
        return self._is_owner and self._taking_work()

    async def _try_again(
        self, message: InboundMessage, error: Exception
    ) -> tuple[Exception | None, Any]:
        backoff = Backoff(base_s=0.1, ceiling_s=ATTEMPT_PAUSE_S_MAX)
        for attempt in range(1, self._options.attempts_max):
            if isinstance(error, ItemInvalid):
                break  # the handler can't read the message, so another attempt can't either
            self.metrics.failed += 1
            self.log.warning(
                "handler_failed", id=message.id, key=message.recip_key, attempt=attempt,
                error=repr(error),
            )  # fmt: skip
            await self.clock.sleep(backoff.next_delay_s())
            if not self._may_handle:
                return error, None
            try:
                return None, await self._call_handler(message)
            except Exception as again:
                error = again
        return error, None

    async def _call_handler(self, message: InboundMessage) -> Any:
        try:
            return await self._handle(message)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The handler awaited something that was cancelled; this task was not cancelled.
            raise HandlerCancelled("the handler was cancelled from inside") from None

    async def _respond(self, message: InboundMessage, answer: Any) -> None:
        try:
            response = response_to(message, answer)
            if response is not None:
                await self._store.post_response(response)
        except Exception as error:
            # Redis is unavailable, or the result is not JSON: the caller runs into its time-out.
            self.log.warning("response_lost", id=message.id, error=repr(error))

    def _dead_letter(
        self, message_id: str, key: str, reason: str, endings: list[tuple[str, str]]
    ) -> None:
        self.metrics.dead += 1
        self.log.error("message_dead", id=message_id, key=key, reason=reason)
        endings.append((message_id, reason[:REASON_CHARS_MAX] or "unknown"))

    # Finishing -------------------------------------------------------------------------------

    async def finish_once(self) -> RoutingPass:
        """Acknowledge the messages handled since the last pass, one call for each partition."""
        for number, partition in enumerate(self._partitions):
            if partition.finished:
                await self._finish_partition(number, partition)
        return RoutingPass(any(partition.finished for partition in self._partitions))

    async def _finish_partition(self, number: int, partition: _PartitionState) -> None:
        batch: list[FinishedKey] = []
        endings = 0
        while partition.finished and endings < ENDINGS_MAX and len(batch) < ENDINGS_MAX:
            batch.append(partition.finished.pop(0))
            endings += len(batch[-1].endings)
        try:
            statuses = await self._store.finish(self.uid, number, batch)
        except OutcomeUnknown:
            # Unfinished messages are claimed again, and may be handled again.
            for each in batch:
                self._release(each.recip_key, partition)
            self._reclaim = True
            raise
        except BaseException:
            partition.finished[:0] = batch
            raise
        for each, status in zip(batch, statuses, strict=True):
            self._release(each.recip_key, partition)
            if status == "not_owner":
                self.metrics.released += 1
            partition.may_have_messages |= status == "more"
        space_again = len(self._claimed) + len(batch) >= self._options.keys_max
        if partition.may_have_messages or partition.untaken or space_again:
            self._reading.wake()

    def _release(self, key: str, partition: _PartitionState) -> None:
        if key in self._claimed_again:
            self._claimed_again.discard(key)
            partition.untaken.append(key)
        else:
            self._claimed.discard(key)
