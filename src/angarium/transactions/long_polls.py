"""The long polls and event streams of one API process.

A waiter is registered before the state is read, so an early end is not missed. Notices from Redis
are hints: after a gap in them, and every few seconds, every waiter reads the state again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import TypeVar

from starlette.responses import Response

from angarium.redis.subscription import ChannelBatch
from angarium.runtime.errors import AngariumError, Overloaded
from angarium.runtime.http_api import reply
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.transactions.gauges import update_gauges
from angarium.transactions.limits import TransactionsLimits
from angarium.transactions.model import PollResult, Transaction, TransactionStatus
from angarium.transactions.poll_response import PollResponse
from angarium.transactions.service import TransactionsService

RECHECK_S = 5.0
GAUGES_S = 5.0
# The first event stream waits at most this long for its subscription. While Redis is unreachable,
# the stream shows states only.
SUBSCRIBE_S = 2.0
# An event stream sends a comment after this much silence, so that proxies keep the connection.
STREAM_SILENCE_S = 15.0
# A client starts a transaction and waits for it a moment later. At 20,000 ends a second these are
# the ends of half a second.
RECENT_ENDS_MAX = 10_000
END_EVENTS = frozenset({b"completed", b"cancelled", b"expired", b"dead"})
PROGRESS_EVENT = b"progressed"
_Waiter = asyncio.Future[bytes]
_Any = TypeVar("_Any")


class _EventStream:
    """The unsent events of one stream. The oldest is dropped when the client does not read."""

    def __init__(self, events_max: int) -> None:
        self.events: deque[bytes] = deque(maxlen=events_max)
        self.has_events = asyncio.Event()

    def add(self, event: bytes) -> None:
        self.events.append(event)
        self.has_events.set()

    async def take(self) -> list[bytes]:
        """All unsent events; empty after STREAM_SILENCE_S without one."""
        try:
            async with asyncio.timeout(STREAM_SILENCE_S):
                await self.has_events.wait()
        except TimeoutError:
            return []
        self.has_events.clear()
        taken = list(self.events)
        self.events.clear()
        return taken


class LongPolls(Service):
    def __init__(self, runtime: Runtime, transactions: TransactionsService) -> None:
        super().__init__("transactions-long-polls", clock=runtime.clock)
        self._runtime = runtime
        self._transactions = transactions
        self._polls: defaultdict[str, set[_Waiter]] = defaultdict(set)
        self._streams: defaultdict[str, set[_EventStream]] = defaultdict(set)
        # The last ends, for clients that begin to wait a moment later. Oldest first.
        self._recent_ends: dict[str, None] = {}
        self._subscribed_to_events: asyncio.Event | None = None
        self._count = 0
        limits = runtime.settings.limits_of(TransactionsLimits)
        self._count_max = limits.transaction_longpolls_items_max
        self._stream_events_max = limits.transaction_stream_events_max

    async def on_start(self) -> None:
        self._subscribed_to_events = None
        self.spawn("notices", self._receive_ends)
        self.loop("recheck", self._recheck, RECHECK_S)
        self.loop("gauges", self._update_gauges, GAUGES_S)

    async def on_quiet(self) -> None:
        """Answer every poll with the current state before the API closes its connections."""
        self._wake_all(b"quiet")

    async def on_close(self) -> None:
        await self._transactions.close()

    async def wait(
        self,
        transaction_id: str,
        timeout_s: float,
        *,
        just_started: bool = False,
        progress: bool = False,
    ) -> PollResult:
        """The final state, or the current one when the time is over; with `progress`, also after a
        progress report. Raises TransactionUnknown.

        `just_started`: this process has just started the transaction, so the notice of its end has
        come or will come, and the first read is saved. The regular recheck covers a lost notice.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        while True:
            waiter: _Waiter = loop.create_future()
            self._register(self._polls, transaction_id, waiter)
            try:
                if just_started and transaction_id in self._recent_ends:
                    waiter.set_result(b"completed")
                if not just_started:
                    found = await self._transactions.poll(transaction_id)
                    if found.transaction.status.final:
                        return found
                left_s = until_s - loop.time()
                if left_s <= 0 or not self.ready:
                    return await self._transactions.poll(transaction_id)
                timer = loop.call_later(left_s, _wake, {waiter}, b"late")
                try:
                    event = await waiter
                finally:
                    timer.cancel()
                if progress and event == PROGRESS_EVENT:
                    return await self._transactions.poll(transaction_id)
                just_started = False  # the next read returns, if this was the end
            finally:
                self._unregister(self._polls, transaction_id, waiter)

    def response(self, polled: PollResult, value: object) -> Response:
        """A response with `value`, which describes `polled`. The first response with a final status
        is recorded once it is written."""
        if not polled.must_record:
            return reply(value)
        return PollResponse(value, partial(self._record, polled.transaction))

    async def _record(self, transaction: Transaction) -> None:
        try:
            await self._transactions.record_reply(transaction)
        except AngariumError as error:
            # The client has its answer. A webhook that the answer should cancel is sent as well.
            self.log.warning("reply_not_recorded", transaction=transaction.id, error=str(error))

    async def follow(self, transaction_id: str) -> AsyncIterator[tuple[str, Transaction | None]]:
        """Events with the state after them, until the end. None instead of a state: keep-alive."""
        stream = _EventStream(self._stream_events_max)
        self._register(self._streams, transaction_id, stream)
        try:
            await self._ensure_event_subscription()
            found = await self._transactions.get(transaction_id)
            yield "state", found
            while not found.status.final:
                events = await stream.take()
                if not self.ready:
                    return
                if not events:
                    yield "alive", None
                    continue
                before, found = found, await self._transactions.get(transaction_id)
                if found.status.final and END_EVENTS.isdisjoint(events):
                    events.append(_end_event(found))  # its notice has not arrived yet
                for event in events:
                    if event != b"state" or found != before:
                        yield event.decode(), found
        finally:
            self._unregister(self._streams, transaction_id, stream)

    def _register(self, table: dict[str, set[_Any]], transaction_id: str, waiter: _Any) -> None:
        if self._count >= self._count_max:
            raise Overloaded("transaction_longpolls_items_max", self._count_max)
        table[transaction_id].add(waiter)
        self._count += 1

    def _unregister(self, table: dict[str, set[_Any]], transaction_id: str, waiter: _Any) -> None:
        self._count -= 1
        others = table.get(transaction_id)
        if others is not None:
            others.discard(waiter)
            if not others:
                del table[transaction_id]

    async def _receive_ends(self) -> None:
        async with self._runtime.subscribe(self._transactions.notify_channel) as subscription:
            while True:
                batch = await subscription.receive()
                if batch.gap:
                    self._wake_polls(b"state")
                for event, ids in _notices(batch):
                    if event != PROGRESS_EVENT:
                        self._recent_ends.update(dict.fromkeys(ids))
                    for id in self._polls.keys() & ids:
                        _wake(self._polls[id], event)
                while len(self._recent_ends) > RECENT_ENDS_MAX:
                    del self._recent_ends[next(iter(self._recent_ends))]

    async def _ensure_event_subscription(self) -> None:
        """The first stream subscribes to all events, because most processes have no stream."""
        if self._subscribed_to_events is None and self.ready:
            self._subscribed_to_events = asyncio.Event()
            self.spawn("events", self._receive_events)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SUBSCRIBE_S):
                if self._subscribed_to_events is not None:
                    await self._subscribed_to_events.wait()

    async def _receive_events(self) -> None:
        async with self._runtime.subscribe(self._transactions.events_channel) as subscription:
            while True:
                batch = await subscription.receive()
                if self._subscribed_to_events is not None:
                    self._subscribed_to_events.set()  # the first batch confirms the subscription
                if batch.gap:
                    self._wake_streams(b"state")
                for event, ids in _notices(batch):
                    for id in ids:  # a notice can name a transaction several times
                        for stream in self._streams.get(id, ()):
                            stream.add(event)

    async def _recheck(self) -> None:
        self._wake_all(b"state")

    def _wake_all(self, event: bytes) -> None:
        self._wake_polls(event)
        self._wake_streams(event)

    def _wake_polls(self, event: bytes) -> None:
        for waiters in self._polls.values():
            _wake(waiters, event)

    def _wake_streams(self, event: bytes) -> None:
        for streams in self._streams.values():
            for stream in streams:
                stream.add(event)

    async def _update_gauges(self) -> None:
        await update_gauges(self._transactions, self._count)


def _notices(batch: ChannelBatch) -> Iterator[tuple[bytes, Sequence[str]]]:
    for message in batch.messages:
        for line in message.payload.decode().split("\n"):
            event, *ids = line.split(" ")
            yield event.encode(), ids


def _end_event(transaction: Transaction) -> bytes:
    if transaction.reason is not None:
        return b"dead"
    status = transaction.status
    events = {TransactionStatus.CANCELLED: b"cancelled", TransactionStatus.TIMEOUT: b"expired"}
    return events.get(status, b"completed")


def _wake(waiters: set[_Waiter], event: bytes) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(event)
