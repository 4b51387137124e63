"""One instance's mail: what belongs to its keys, handled in order and then acknowledged.

A message stays in its list until the handler has returned: what a dying process had in hand is
taken again, by itself or by the next owner of the key. Messages of one key are handled one after
the other; keys are handled side by side. The instance trusts its keys only as long as nobody can
have called it silent: after a long pause it lets go of what it had taken and asks again. It needs
no settings, so it runs inside the ACA-Py plugin as well as in the role `inbox`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from angarium.redis.backoff import Backoff
from angarium.routing.errors import HandlerCancelled, ItemInvalid
from angarium.routing.items import Message, decode_inbound, id_of, response_to
from angarium.routing.store import Finished, RoutingStore, partition_in
from angarium.runtime.clock import Clock
from angarium.runtime.errors import OutcomeUnknown
from angarium.runtime.service import Loop, Service

Handle = Callable[[Message], Awaitable[Any]]

# Five signs of life in the time that would make an instance silent.
BEATS_PER_SILENCE = 5
# Of the time after which an instance counts as silent: what it relies on itself. The rest covers
# clocks that run unevenly and the moment between looking and handling.
TRUST_PART = 0.9
# Without hints: how soon mail is found, and how soon the mail of a dead instance is.
POLL_S = 0.5
SWEEP_S = 1.0
# A sweep looks at every instance; more than so many in a second would do it for nothing.
SWEEPERS = 10
# Keys asked for at once, and messages of them taken at once: some milliseconds of handling.
CLAIM_KEYS_MAX = 256
TAKE_MESSAGES_MAX = 512
# Of one key: more would only make what is taken twice after a fault more.
LINE_MESSAGES_MAX = 64
ENDINGS_MAX = 512
# The last pause between two attempts at a message; its key waits, the others do not.
ATTEMPT_PAUSE_S_MAX = 5.0


@dataclass(frozen=True)
class MailboxOptions:
    stale_after_ms: int = 15_000
    handlers: int = 64
    attempts_max: int = 5
    keys_max: int = 512


@dataclass
class MailFigures:
    handled: int = 0
    failed: int = 0
    dead: int = 0
    let_go: int = 0
    registered: int = 0


@dataclass(frozen=True)
class _Line:
    """Messages of one key, in order."""

    partition: int
    recip_key: str
    items: Sequence[bytes]


@dataclass(frozen=True)
class Pass:
    """Of a loop; `again` asks for the next one at once."""

    again: bool = False


@dataclass
class _Partition:
    """What is known of one partition between two passes."""

    hot: bool = True
    later: list[str] = field(default_factory=list)
    done: list[Finished] = field(default_factory=list)


class Mailbox(Service):
    """`handle` gets each message; what it returns answers a caller that waits at a relay."""

    def __init__(
        self,
        store: RoutingStore,
        uid: str,
        handle: Handle,
        options: MailboxOptions,
        *,
        name: str = "inbox",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(name, clock=clock)
        self.uid = uid
        self.figures = MailFigures()
        self._store = store
        self._handle = handle
        self._options = options
        self._partitions = [_Partition() for _ in range(store.partitions)]
        self._lines: asyncio.Queue[_Line] = asyncio.Queue()
        self._in_hand: set[str] = set()
        self._named_early: set[str] = set()
        self._working = 0
        self._trusted_until = 0.0
        self._next_sweep_s = 0.0
        self._lost_track = True  # whether keys may be named to us that we do not know of
        self._reading: Loop
        self._finishing: Loop
        self._beating: Loop

    # Life ------------------------------------------------------------------------------------

    async def on_start(self) -> None:
        self._lost_track = True
        await self.beat()
        beat_s = self._options.stale_after_ms / 1000 / BEATS_PER_SILENCE
        self._beating = self.loop("beat", self.beat, beat_s, until="stop")
        self._reading = self.loop("read", self.read_once, POLL_S)
        self._finishing = self.loop("finish", self.finish_once, POLL_S, until="stop")
        self.loop("sweep", self.sweep_once, SWEEP_S)
        self.spawn("hints", self._follow_hints)
        self.spawn("handlers", self._handlers)

    async def on_stop(self) -> None:
        """What is being handled is finished; what only waited here is ready for others."""
        await self.passes_ended()
        while not self._lines.empty():
            line = self._lines.get_nowait()
            self._partitions[line.partition].done.append(Finished(line.recip_key, ()))
        for partition in self._partitions:
            partition.done += [Finished(key, ()) for key in partition.later]
            partition.later = []
        while self._working or any(each.done for each in self._partitions):
            await self.finish_once()
            await self.clock.sleep(0.005)
        await self._store.retire(self.uid)

    @property
    def in_hand(self) -> int:
        return len(self._in_hand)

    async def beat(self) -> None:
        """A sign of life; registers the instance where it is not known, or no longer."""
        began_s = self.clock.monotonic()
        if await self._store.touch(self.uid):
            self.figures.registered += 1
            self._lost_track = True
            self.log.info("registered", uid=self.uid)
        trusted_before = self._trusted
        self._trusted_until = began_s + self._options.stale_after_ms / 1000 * TRUST_PART
        if not trusted_before and self.ready:
            self._lost_track = True
            self._look_everywhere()

    async def sweep_once(self) -> Pass:
        """Give out kept mail and that of stale instances; about ten do so in a second, in all."""
        if self.clock.monotonic() < self._next_sweep_s:
            return Pass()
        swept = await self._store.sweep()
        share = max(0, swept.instances - SWEEPERS) / SWEEPERS
        self._next_sweep_s = self.clock.monotonic() + SWEEP_S * share
        return Pass(swept.again)

    @property
    def _trusted(self) -> bool:
        return self.clock.monotonic() < self._trusted_until

    # Reading ---------------------------------------------------------------------------------

    async def read_once(self) -> Pass:
        """Take mail wherever there may be some, as long as there is space for it."""
        again, lost_track = False, self._lost_track
        self._lost_track = False
        try:
            for number, partition in enumerate(self._partitions):
                if not self._trusted:
                    self._lost_track |= lost_track
                    self._beating.wake()
                    return Pass()
                # One poll looks at all; between them only where a hint pointed.
                if partition.hot or partition.later or lost_track:
                    again |= await self._read_partition(number, lost_track)
        except BaseException as error:
            # A look that failed has found nothing again: the next one has to.
            self._lost_track |= lost_track or isinstance(error, OutcomeUnknown)
            raise
        if not again:
            for partition in self._partitions:
                partition.hot = True
        return Pass(again)

    async def _read_partition(self, number: int, lost_track: bool) -> bool:
        partition, space = self._partitions[number], self._options.keys_max - len(self._in_hand)
        if space <= 0 and not partition.later:
            return False  # whoever makes space wakes us
        partition.hot = False
        wanted = max(0, min(space, CLAIM_KEYS_MAX))
        # Layout `acapy` can't mark what was named: what is in hand is named again, and first.
        asked = wanted + len(self._in_hand) if wanted and self._store.acapy else wanted
        found = await self._store.claim(self.uid, number, asked, again=lost_track)
        if found is None:
            self._beating.wake()  # removed while we were not looking
            return False
        keys = [key for key in found.again if key not in self._in_hand]
        for key in found.fresh:
            if key in self._in_hand:
                # It was finished and got mail before we heard of either.
                self._named_early.add(key)
            else:
                keys.append(key)
        self._in_hand.update(keys)
        keys, partition.later = partition.later + keys, []
        if keys:
            await self._take(number, keys)
        return bool(keys) and len(found.again) + len(found.fresh) >= asked

    async def _take(self, number: int, keys: list[str]) -> None:
        each_max = max(1, min(LINE_MESSAGES_MAX, TAKE_MESSAGES_MAX // len(keys)))
        partition = self._partitions[number]
        try:
            taken = await self._store.take(self.uid, number, keys, each_max)
        except BaseException:
            partition.later += keys
            raise
        for key, found in zip(keys, taken, strict=True):
            if found == "later":
                partition.later.append(key)
            elif isinstance(found, str):
                self._let_go(key)
            elif found:
                self._lines.put_nowait(_Line(number, key, found))
            else:
                partition.done.append(Finished(key, ()))
                self._finishing.wake()

    async def _follow_hints(self) -> None:
        async with self._store.mail_hints(self.uid) as hints:
            while True:
                batch = await hints.receive()
                if batch.gap:
                    self._look_everywhere()
                for message in batch.messages:
                    number = partition_in(message.payload, len(self._partitions))
                    if number is not None:
                        self._partitions[number].hot = True
                self._reading.wake()

    def _look_everywhere(self) -> None:
        for partition in self._partitions:
            partition.hot = True
        self._reading.wake()

    # Handling --------------------------------------------------------------------------------

    async def _handlers(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._options.handlers):
                group.create_task(self._handler())

    async def _handler(self) -> None:
        while True:
            line = await self._lines.get()
            self._working += 1
            endings: list[tuple[str, str]] = []
            try:
                await self._handle_line(line, endings)
            finally:
                self._working -= 1
                self._line_ended(line, endings)

    async def _handle_line(self, line: _Line, endings: list[tuple[str, str]]) -> None:
        for item in line.items:
            if not self._trusted or not self._taking_work():
                return
            try:
                message = decode_inbound(item, line.recip_key)
            except ItemInvalid as error:
                self._bury(id_of(item), line.recip_key, str(error), endings)
                continue
            try:
                answer = await self._call_handler(message)
            except Exception as error:
                failure, answer = await self._try_again(message, error)
                if failure is not None:
                    if not self._trusted or not self._taking_work():
                        return
                    self._bury(message.id, line.recip_key, repr(failure), endings)
                    continue
            if message.txn_id is not None:
                await self._respond(message, answer)
            endings.append((message.id, ""))
            self.figures.handled += 1

    async def _try_again(self, message: Message, error: Exception) -> tuple[Exception | None, Any]:
        backoff = Backoff(base_s=0.1, ceiling_s=ATTEMPT_PAUSE_S_MAX)
        for attempt in range(1, self._options.attempts_max):
            if isinstance(error, ItemInvalid):
                break  # a handler that can't read it will not read it the next time either
            self.figures.failed += 1
            self.log.warning(
                "handler_failed", id=message.id, key=message.recip_key, attempt=attempt,
                error=repr(error),
            )  # fmt: skip
            await self.clock.sleep(backoff.next_delay_s())
            if not self._trusted or not self._taking_work():
                return error, None
            try:
                return None, await self._call_handler(message)
            except Exception as again:
                error = again
        return error, None

    async def _call_handler(self, message: Message) -> Any:
        try:
            return await self._handle(message)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Something that it awaited was cancelled: its failure, not the end of this task.
            raise HandlerCancelled("the handler was cancelled from inside") from None

    async def _respond(self, message: Message, answer: Any) -> None:
        try:
            response = response_to(message, answer)
            if response is not None:
                await self._store.post_response(response)
        except Exception as error:
            # Redis did not take it, or it can't be written: the caller runs into its time-out.
            self.log.warning("response_lost", id=message.id, error=repr(error))

    def _bury(self, message_id: str, key: str, reason: str, endings: list[tuple[str, str]]) -> None:
        self.figures.dead += 1
        self.log.error("message_dead", id=message_id, key=key, reason=reason)
        endings.append((message_id, reason[:500] or "unknown"))

    # Finishing -------------------------------------------------------------------------------

    def _line_ended(self, line: _Line, endings: list[tuple[str, str]]) -> None:
        self._partitions[line.partition].done.append(Finished(line.recip_key, endings))
        self._finishing.wake()

    async def finish_once(self) -> Pass:
        """Acknowledge what was handled since the last pass, one call for each partition."""
        for number, partition in enumerate(self._partitions):
            if partition.done:
                await self._finish_partition(number, partition)
        return Pass(any(partition.done for partition in self._partitions))

    async def _finish_partition(self, number: int, partition: _Partition) -> None:
        batch: list[Finished] = []
        endings = 0
        while partition.done and endings < ENDINGS_MAX and len(batch) < ENDINGS_MAX:
            batch.append(partition.done.pop(0))
            endings += len(batch[-1].endings)
        try:
            statuses = await self._store.finish(self.uid, number, batch)
        except OutcomeUnknown:
            # Finished or not: what was not is found again, and may be handled again.
            for each in batch:
                self._ended(each.recip_key, partition)
            self._lost_track = True
            raise
        except BaseException:
            partition.done[:0] = batch
            raise
        for each, status in zip(batch, statuses, strict=True):
            self._ended(each.recip_key, partition)
            if status == "not_owner":
                self.figures.let_go += 1
            partition.hot |= status == "more"
        space_again = len(self._in_hand) + len(batch) >= self._options.keys_max
        if partition.hot or partition.later or space_again:
            self._reading.wake()

    def _ended(self, key: str, partition: _Partition) -> None:
        if key in self._named_early:
            self._named_early.discard(key)
            partition.later.append(key)
        else:
            self._in_hand.discard(key)

    def _let_go(self, key: str) -> None:
        self._in_hand.discard(key)
        self.figures.let_go += 1
