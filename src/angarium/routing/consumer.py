"""One instance: claims the keys it owns that have messages, handles and acknowledges the messages.

A message stays in its list until the handler has returned. After a crash, the next owner of the key
takes the message again. Messages of one key are handled one after the other, different keys at the
same time. The instance relies on its keys only while no other instance can consider it silent:
after a long pause it drops the messages it had taken and claims again. It needs no settings, so
it runs inside the ACA-Py plugin as well as in the role `inbox`.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field

from angarium.routing.finished_keys import FinishedKey
from angarium.routing.handling import Handle, KeyBatch, MessageHandling
from angarium.routing.store import RoutingStore, hinted_partition
from angarium.routing.transitions import TriedMessage
from angarium.runtime.clock import Clock
from angarium.runtime.errors import OutcomeUnknown
from angarium.runtime.retry_policy import RetryPolicy
from angarium.runtime.service import Loop, Service

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
# How soon a message whose next attempt is due is taken.
DUE_S = 0.1


@dataclass(frozen=True)
class ConsumerOptions:
    stale_after_ms: int = 15_000
    handlers: int = 64
    attempts_max: int = 5
    keys_max: int = 512
    delayed_keys_max: int = 10_000
    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(delay_s=0.1, delay_s_max=5.0))


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
        self.session = secrets.token_hex(8)
        self._store = store
        self._options = options
        self._handling = MessageHandling(
            self, store, handle, options.attempts_max, options.retry, self.clock
        )
        self.metrics = self._handling.metrics
        self._partitions = [_PartitionState() for _ in range(store.partitions)]
        self._batches: asyncio.Queue[KeyBatch] = asyncio.Queue()
        # Messages that may have ended their instances; one is handled at a time.
        self._alone: asyncio.Queue[KeyBatch] = asyncio.Queue()
        # Claimed keys whose message is not due yet: partition, and the time when it is.
        self._delayed: dict[str, tuple[int, float]] = {}
        self._claimed: set[str] = set()
        # Keys that were claimed again before the reply to their finish arrived.
        self._claimed_again: set[str] = set()
        self._working = 0
        self._in_slots = 0  # of `_working`, those that use one of the handlers
        self._starved = False  # reading stopped because no handler was free
        self._owner_until_s = 0.0
        self._next_sweep_s = 0.0
        self._reclaim = True  # a reply was lost or ownership was unsure: ask for claimed keys too
        self._reading: Loop
        self._finishing: Loop
        self._heartbeats: Loop

    # Life ------------------------------------------------------------------------------------

    async def on_start(self) -> None:
        self._reclaim = True
        await self._beat(starting=True)
        heartbeat_s = self._options.stale_after_ms / 1000 / HEARTBEATS_PER_TIMEOUT
        self._heartbeats = self.loop("heartbeat", self.heartbeat, heartbeat_s, until="stop")
        self._reading = self.loop("read", self.read_once, POLL_S)
        self._finishing = self.loop("finish", self.finish_once, POLL_S, until="stop")
        self.loop("sweep", self.sweep_once, SWEEP_S)
        self.loop("due", self.take_due, DUE_S)
        self.spawn("hints", self._follow_hints)
        self.spawn("handlers", self._handlers)

    async def on_stop(self) -> None:
        """Finish the messages in their handlers; give the others back."""
        await self.passes_ended()
        for queue in (self._batches, self._alone):
            while not queue.empty():
                batch = queue.get_nowait()
                self._partitions[batch.partition].finished.append(FinishedKey(batch.recip_key, ()))
        for key, (number, _) in self._delayed.items():
            self._partitions[number].finished.append(FinishedKey(key, ()))
        self._delayed = {}
        for partition in self._partitions:
            partition.finished += [FinishedKey(key, ()) for key in partition.untaken]
            partition.untaken = []
        while self._working or any(each.finished for each in self._partitions):
            await self.finish_once()
            await self.clock.sleep(0.005)
        await self._store.retire(self.uid, self.session)

    @property
    def claimed_keys(self) -> int:
        return len(self._claimed)

    async def heartbeat(self) -> None:
        """Say that the instance is alive; register it where it is unknown or was removed."""
        await self._beat()

    async def _beat(self, *, starting: bool = False) -> None:
        began_s = self.clock.monotonic()
        if await self._store.touch(self.uid, self.session, starting=starting):
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
        partition, space = self._partitions[number], self._space
        self._starved = space <= 0
        if space <= 0 and not partition.untaken:
            return False  # the end of a batch wakes this loop
        partition.may_have_messages = False
        wanted = max(0, min(space, CLAIM_KEYS_MAX))
        # Layout `acapy` can't mark claimed keys: a claim returns them again, and first.
        asked = wanted + len(self._claimed) if wanted and self._store.acapy else wanted
        claim = self._store.claim
        found = await claim(self.uid, number, asked, again=reclaim, session=self.session)
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

    @property
    def _space(self) -> int:
        """Keys that can be handled at once: an instance takes no more."""
        options, delayed = self._options, len(self._delayed)
        in_use = self._batches.qsize() + self._in_slots
        return min(
            options.handlers - in_use,
            options.keys_max - len(self._claimed) + delayed,
            options.delayed_keys_max - delayed,
        )

    async def _take(self, number: int, keys: list[str]) -> None:
        each_max = max(1, min(KEY_MESSAGES_MAX, TAKE_MESSAGES_MAX // len(keys)))
        partition = self._partitions[number]
        try:
            take = self._store.take
            taken = await take(self.uid, number, keys, each_max, self.session)
        except BaseException:
            partition.untaken += keys
            raise
        for key, found in zip(keys, taken, strict=True):
            if found == "later":
                partition.untaken.append(key)
            elif isinstance(found, str):
                self._claimed.discard(key)  # another instance owns it
                self.metrics.released += 1
            elif isinstance(found, TriedMessage):
                self._add_tried(number, key, found)
            elif found.messages:
                self._batches.put_nowait(KeyBatch(number, key, found.messages))
            else:
                partition.finished.append(FinishedKey(key, ()))
                self._finishing.wake()

    def _add_tried(self, number: int, key: str, tried: TriedMessage) -> None:
        if tried.wait_ms > 0:
            wait_s = min(tried.wait_ms / 1000, self._options.retry.delay_s_max)
            self._delayed[key] = number, self.clock.monotonic() + wait_s
            return
        batch = KeyBatch(number, key, [tried.message], tried)
        alone = self._handling.goes_alone(batch)
        (self._alone if alone else self._batches).put_nowait(batch)

    async def take_due(self) -> None:
        """Take the messages whose next attempt is due."""
        now_s = self.clock.monotonic()
        due = [key for key, (_, at_s) in self._delayed.items() if at_s <= now_s]
        for key in due:
            number, _ = self._delayed.pop(key)
            self._partitions[number].untaken.append(key)
        if due:
            self._reading.wake()

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
            group.create_task(self._handler(self._alone))
            for _ in range(self._options.handlers):
                group.create_task(self._handler(self._batches))

    async def _handler(self, batches: asyncio.Queue[KeyBatch]) -> None:
        slots = int(batches is self._batches)
        while True:
            batch = await batches.get()
            self._working += 1
            self._in_slots += slots
            endings: list[tuple[str, str]] = []
            finished = FinishedKey(batch.recip_key, endings)
            try:
                finished = await self._handling.run(batch, endings)
            except Exception as error:
                # Redis was unavailable between two messages: the rest is taken again.
                self.log.warning("key_interrupted", key=batch.recip_key, error=repr(error))
            finally:
                self._working -= 1
                self._in_slots -= slots
                self._partitions[batch.partition].finished.append(finished)
                self._finishing.wake()
                if self._starved:
                    self._reading.wake()

    @property
    def may_handle(self) -> bool:
        return self._is_owner and self._taking_work()

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
            statuses = await self._store.finish(self.uid, number, batch, self.session)
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
        if partition.may_have_messages or partition.untaken or self._starved:
            self._reading.wake()

    def _release(self, key: str, partition: _PartitionState) -> None:
        if key in self._claimed_again:
            self._claimed_again.discard(key)
            partition.untaken.append(key)
        else:
            self._claimed.discard(key)
