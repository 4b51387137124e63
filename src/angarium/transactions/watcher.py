"""Waiting for transactions: the long polls and event streams of one API process.

Whoever waits is registered first and looks at the state second, so an end that came early is not
missed. Notices from Redis are hints; after a gap, and every few seconds, everyone looks again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import TypeVar

from prometheus_client import Gauge
from starlette.responses import Response

from angarium.redis.subscription import ChannelBatch
from angarium.runtime.errors import AngariumError, Overloaded
from angarium.runtime.http_api import reply
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.transactions.client import Transactions
from angarium.transactions.model import Polled, Status, Transaction
from angarium.transactions.poll_answer import PollAnswer
from angarium.transactions.statistics import Level

LOOK_S = 5.0
FIGURES_S = 5.0
# The first stream waits this long to be heard; when Redis is away, it sees states until it is back.
SUBSCRIBE_S = 2.0
# Between two signs of life of an event stream, so that proxies keep the connection.
STREAM_SILENCE_S = 15.0
# A start and the wait for it lie a moment apart; at 20,000 ends a second this is half a second.
ENDS_MAX = 10_000
ENDS = frozenset({b"completed", b"cancelled", b"expired"})

FIGURES = Gauge(
    "angarium_transactions", "Transactions by where they are, and nodes without a sign of life.",
    ["state"],
)  # fmt: skip
QUEUES = Gauge(
    "angarium_transaction_queue", "Transactions waiting for a node.", ["node_group", "kind"]
)
AWAITED_STEPS = Gauge(
    "angarium_transactions_awaiting_step", "Transactions that wait for a node with a step type.",
    ["node_group", "step_type"],
)  # fmt: skip
EVENTS = Gauge(
    "angarium_transaction_events", "Events of the last five minutes.", ["node_group", "event"]
)

# Of a follower that does not read.
EVENTS_MAX = 1_000
_Waiting = asyncio.Future[bytes]
_Any = TypeVar("_Any")


class _Stream:
    """What one follower has not been told yet; the oldest is given up when it does not listen."""

    def __init__(self) -> None:
        self.events: deque[bytes] = deque(maxlen=EVENTS_MAX)
        self.heard = asyncio.Event()

    def tell(self, event: bytes) -> None:
        self.events.append(event)
        self.heard.set()

    async def take(self) -> list[bytes]:
        """Nothing, if nothing happened for a while."""
        try:
            async with asyncio.timeout(STREAM_SILENCE_S):
                await self.heard.wait()
        except TimeoutError:
            return []
        self.heard.clear()
        taken = list(self.events)
        self.events.clear()
        return taken


class Watcher(Service):
    def __init__(self, runtime: Runtime, transactions: Transactions) -> None:
        super().__init__("transactions-watcher", clock=runtime.clock)
        self._runtime = runtime
        self._transactions = transactions
        # Those who wait for the end only, and those who want to hear of everything.
        self._polls: defaultdict[str, set[_Waiting]] = defaultdict(set)
        self._streams: defaultdict[str, set[_Stream]] = defaultdict(set)
        # The last ends that were told of, for those who come to wait a moment later.
        self._ends: dict[str, None] = {}
        self._following: asyncio.Event | None = None
        self._count = 0
        self._count_max = runtime.settings.limits.transaction_longpolls_items_max

    async def on_start(self) -> None:
        self._following = None
        self.spawn("notices", self._listen)
        self.loop("look", self._look_again, LOOK_S)
        self.loop("figures", self._figures, FIGURES_S)

    async def on_quiet(self) -> None:
        """Every poll is answered with what there is, before the API's connections close."""
        self._wake_all(b"quiet")

    async def on_close(self) -> None:
        await self._transactions.close()

    async def wait(self, transaction_id: str, timeout_s: float, *, fresh: bool = False) -> Polled:
        """Its end, or what there is when the time is over; TransactionUnknown if it never was.

        `fresh`: this process has just started it, so a notice of its end has come or will come;
        should it be lost, everyone looks every few seconds anyway.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        while True:
            waiting: _Waiting = loop.create_future()
            self._register(self._polls, transaction_id, waiting)
            try:
                if fresh and transaction_id in self._ends:
                    waiting.set_result(b"completed")
                if not fresh:
                    found = await self._transactions.poll(transaction_id)
                    if found.transaction.status.final:
                        return found
                left_s = until_s - loop.time()
                if left_s <= 0 or not self.ready:
                    return await self._transactions.poll(transaction_id)
                timer = loop.call_later(left_s, _wake, {waiting}, b"late")
                try:
                    await waiting
                finally:
                    timer.cancel()
                fresh = False  # the next look answers, if this was the end
            finally:
                self._forget(self._polls, transaction_id, waiting)

    def answer(self, polled: Polled, value: object) -> Response:
        """`value` says what `polled` found; the first answer with an end is recorded once it is
        written."""
        if not polled.first:
            return reply(value)
        return PollAnswer(value, partial(self._record, polled.transaction))

    async def _record(self, transaction: Transaction) -> None:
        try:
            await self._transactions.record_reply(transaction)
        except AngariumError as error:
            # The client has its answer. A webhook that it would have cancelled comes as well.
            self.log.warning("reply_not_recorded", transaction=transaction.id, error=str(error))

    async def follow(self, transaction_id: str) -> AsyncIterator[tuple[str, Transaction | None]]:
        """What happens to it, from now until its end: event and state; None only says we live."""
        stream = _Stream()
        self._register(self._streams, transaction_id, stream)
        try:
            await self._listen_to_events()
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
                if found.status.final and ENDS.isdisjoint(events):
                    events.append(_end_of(found.status))  # its notice is still under way
                for event in events:
                    if event != b"state" or found != before:
                        yield event.decode(), found
        finally:
            self._forget(self._streams, transaction_id, stream)

    def _register(self, table: dict[str, set[_Any]], transaction_id: str, waiting: _Any) -> None:
        if self._count >= self._count_max:
            raise Overloaded("transaction_longpolls_items_max", self._count_max)
        table[transaction_id].add(waiting)
        self._count += 1

    def _forget(self, table: dict[str, set[_Any]], transaction_id: str, waiting: _Any) -> None:
        self._count -= 1
        others = table.get(transaction_id)
        if others is not None:
            others.discard(waiting)
            if not others:
                del table[transaction_id]

    async def _listen(self) -> None:
        """For the polls, to ends."""
        async with self._runtime.redis.subscribe(self._transactions.notify_channel) as subscription:
            while True:
                batch = await subscription.receive()
                if batch.gap:
                    self._wake_polls(b"state")
                for event, ids in _notices(batch):
                    self._ends.update(dict.fromkeys(ids))
                    for id in self._polls.keys() & ids:
                        _wake(self._polls[id], event)
                while len(self._ends) > ENDS_MAX:
                    del self._ends[next(iter(self._ends))]

    async def _listen_to_events(self) -> None:
        """For the streams, to everything; from the first one on, for most processes have none."""
        if self._following is None and self.ready:
            self._following = asyncio.Event()
            self.spawn("events", self._follow_all)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SUBSCRIBE_S):
                if self._following is not None:
                    await self._following.wait()

    async def _follow_all(self) -> None:
        async with self._runtime.redis.subscribe(self._transactions.events_channel) as subscription:
            while True:
                batch = await subscription.receive()
                if self._following is not None:
                    self._following.set()  # the first batch says that we are heard
                if batch.gap:
                    self._wake_streams(b"state")
                for event, ids in _notices(batch):
                    for id in ids:  # an event may have happened to one several times
                        for stream in self._streams.get(id, ()):
                            stream.tell(event)

    async def _look_again(self) -> None:
        self._wake_all(b"state")

    def _wake_all(self, event: bytes) -> None:
        self._wake_polls(event)
        self._wake_streams(event)

    def _wake_polls(self, event: bytes) -> None:
        for others in self._polls.values():
            _wake(others, event)

    def _wake_streams(self, event: bytes) -> None:
        for streams in self._streams.values():
            for stream in streams:
                stream.tell(event)

    async def _figures(self) -> None:
        watch = await self._transactions.watch(1)
        FIGURES.labels("running").set(watch.running)
        FIGURES.labels("sleeping").set(watch.sleeping)
        FIGURES.labels("to_archive").set(watch.to_archive)
        FIGURES.labels("webhooks_due").set(watch.webhooks)
        FIGURES.labels("silent_nodes").set(sum(not node.alive for node in watch.nodes))
        FIGURES.labels("polls").set(self._count)
        for queue in watch.queues:
            QUEUES.labels(queue.node_group, queue.kind).set(queue.length)
        AWAITED_STEPS.clear()  # a step that is awaited no longer has no line
        for step in watch.awaited_steps:
            AWAITED_STEPS.labels(step.node_group, step.step_type).set(step.transactions)
        await self._count_events()

    async def _count_events(self) -> None:
        """As the scripts counted them, whichever process called them."""
        sums: Counter[tuple[str, str]] = Counter()
        for interval in await self._transactions.statistics(Level.FINE, Level.FINE.intervals_max):
            for group, counters in interval.node_groups.items():
                sums.update({(group, event): count for event, count in counters.items()})
        EVENTS.clear()
        for labels, count in sums.items():
            EVENTS.labels(*labels).set(count)


def _notices(batch: ChannelBatch) -> Iterator[tuple[bytes, Sequence[str]]]:
    for message in batch.messages:
        for line in message.payload.decode().split("\n"):
            event, *ids = line.split(" ")
            yield event.encode(), ids


def _end_of(status: Status) -> bytes:
    return {Status.CANCELLED: b"cancelled", Status.TIMEOUT: b"expired"}.get(status, b"completed")


def _wake(others: set[_Waiting], event: bytes) -> None:
    for waiting in others:
        if not waiting.done():
            waiting.set_result(event)
