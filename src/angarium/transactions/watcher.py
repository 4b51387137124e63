"""Waiting for transactions: the long polls and event streams of one API process.

Whoever waits is registered first and looks at the state second, so an end that came early is not
missed. Notices from Redis are hints; after a gap, and every few seconds, everyone looks again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator

from prometheus_client import Gauge

from angarium.core.errors import Overloaded
from angarium.core.ground import Ground
from angarium.core.service import Service
from angarium.transactions.client import Transactions
from angarium.transactions.model import Transaction

LOOK_S = 5.0
FIGURES_S = 5.0
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

_Waiting = asyncio.Future[bytes]
_Table = defaultdict[str, set[_Waiting]]


class Watcher(Service):
    def __init__(self, ground: Ground, transactions: Transactions) -> None:
        super().__init__("transactions-watcher", clock=ground.clock)
        self._ground = ground
        self._transactions = transactions
        # Those who wait for the end only, and those who want to hear of everything.
        self._polls: _Table = defaultdict(set)
        self._streams: _Table = defaultdict(set)
        # The last ends that were told of, for those who come to wait a moment later.
        self._ends: dict[str, None] = {}
        self._count = 0
        self._count_max = ground.settings.limits.transaction_longpolls_items_max

    async def on_start(self) -> None:
        self.spawn("notices", self._listen)
        self.loop("look", self._look_again, LOOK_S)
        self.loop("figures", self._figures, FIGURES_S)

    async def on_quiet(self) -> None:
        """Every poll is answered with what there is, before the API's connections close."""
        self._wake_all(b"quiet")

    async def on_close(self) -> None:
        await self._transactions.close()

    async def wait(
        self, transaction_id: str, timeout_s: float, *, fresh: bool = False
    ) -> Transaction:
        """Its end, or what there is when the time is over; TransactionUnknown if it never was.

        `fresh`: this process has just started it, so a notice of its end has come or will come;
        should it be lost, everyone looks every few seconds anyway.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        while True:
            waiting = self._register(self._polls, transaction_id)
            try:
                if fresh and transaction_id in self._ends:
                    waiting.set_result(b"completed")
                if not fresh:
                    found = await self._transactions.get(transaction_id)
                    if found.status.final:
                        return await self._transactions.replied(found)
                left_s = until_s - loop.time()
                if left_s <= 0 or not self.ready:
                    return await self._transactions.get(transaction_id)
                timer = loop.call_later(left_s, _wake, {waiting}, b"late")
                try:
                    event = await waiting
                finally:
                    timer.cancel()
                if event in ENDS:
                    ended = await self._transactions.replied_to(transaction_id)
                    if ended is not None and ended.status.final:
                        return ended
                fresh = False
            finally:
                self._forget(self._polls, transaction_id, waiting)

    async def follow(self, transaction_id: str) -> AsyncIterator[tuple[str, Transaction | None]]:
        """What happens to it, from now until its end: event and state; None only says we live."""
        event = "state"
        while True:
            waiting = self._register(self._streams, transaction_id)
            try:
                found = await self._transactions.get(transaction_id)
                yield event, found
                if found.status.final:
                    return
                while not waiting.done():
                    await asyncio.wait({waiting}, timeout=STREAM_SILENCE_S)
                    if not waiting.done():
                        yield "alive", None
                event = waiting.result().decode()
                if not self.ready:
                    return
            finally:
                self._forget(self._streams, transaction_id, waiting)

    def _register(self, table: _Table, transaction_id: str) -> _Waiting:
        if self._count >= self._count_max:
            raise Overloaded("transaction_longpolls_items_max", self._count_max)
        waiting: _Waiting = asyncio.get_running_loop().create_future()
        table[transaction_id].add(waiting)
        self._count += 1
        return waiting

    def _forget(self, table: _Table, transaction_id: str, waiting: _Waiting) -> None:
        self._count -= 1
        others = table.get(transaction_id)
        if others is not None:
            others.discard(waiting)
            if not others:
                del table[transaction_id]

    async def _listen(self) -> None:
        async with self._ground.redis.subscribe(self._transactions.notify_channel) as subscription:
            while True:
                batch = await subscription.receive()
                if batch.gap:
                    self._wake_all(b"state")
                for message in batch.messages:
                    for line in message.payload.split(b"\n"):
                        name, _, event = line.partition(b" ")
                        self._heard(name.decode(), event)
                while len(self._ends) > ENDS_MAX:
                    del self._ends[next(iter(self._ends))]

    def _heard(self, transaction_id: str, event: bytes) -> None:
        if event in ENDS:
            self._ends[transaction_id] = None
            if transaction_id in self._polls:
                _wake(self._polls[transaction_id], event)
        if transaction_id in self._streams:
            _wake(self._streams[transaction_id], event)

    async def _look_again(self) -> None:
        self._wake_all(b"state")

    def _wake_all(self, event: bytes) -> None:
        for table in (self._polls, self._streams):
            for others in table.values():
                _wake(others, event)

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


def _wake(others: set[_Waiting], event: bytes) -> None:
    for waiting in others:
        if not waiting.done():
            waiting.set_result(event)
