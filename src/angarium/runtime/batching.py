"""Gathers single calls that are made at the same time into one call for all of them.

A batch is what arrived while others were in flight: nothing waits when nothing is in flight,
and the batches grow by themselves when the load does. Two batches of a partition may be in
flight, so that Redis works on one while this process prepares the other. Items that name the
same `order` never overtake each other: a batch leaves out what another in flight must come
before. Bounded in items and bytes, of a batch and of all that has no answer yet.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, Self, TypeVar

from angarium.redis.connection import Argument
from angarium.runtime.errors import CommandInvalid, Overloaded, RedisUnavailable, ScriptFailed
from angarium.runtime.limits import Limits

Item = TypeVar("Item")
Result = TypeVar("Result")

# One that Redis works on, one that is prepared meanwhile. A third would only wait at the server.
IN_FLIGHT_MAX = 2
# Fewer are not worth a second call: its fixed cost is that of about this many items.
SPLIT_ITEMS_MIN = 32

_Waiting = tuple[Item, Hashable, int, int, asyncio.Future[Result]]
"""An item, its order, its bytes, those with its answer, who waits for it: a bare tuple, for there
are many."""


BatchItem = tuple[tuple[str, ...], tuple[Argument, ...]]
"""What one item of a script's batch adds to KEYS and to ARGV."""


def joined(
    shared_keys: Sequence[str], shared_args: Sequence[Argument], items: Sequence[BatchItem]
) -> tuple[list[str], list[Argument]]:
    """KEYS and ARGV of a batch: the shared ones, the number of items, then each item's own."""
    names, values = [*shared_keys], [*shared_args, len(items)]
    for item_keys, item_args in items:
        names += item_keys
        values += item_args
    return names, values


class BytesUnanswered:
    """Bytes of the items that have no answer yet; one counter for all batchers of a process."""

    __slots__ = ("_bytes_max", "count")

    def __init__(self, limits: Limits) -> None:
        self._bytes_max = limits.batch_waiting_bytes_max
        self.count = 0

    def add(self, size_bytes: int) -> None:
        # An item that is larger than the limit goes when nothing else is under way. One without
        # a payload always goes: it often ends what holds the bytes.
        if self.count and size_bytes and self.count + size_bytes > self._bytes_max:
            raise Overloaded("batch_waiting_bytes_max", self._bytes_max)
        self.count += size_bytes


class _Lane(Generic[Item, Result]):
    """One partition: who waits, and the orders that are in flight, one set per batch."""

    __slots__ = ("busy", "number", "scheduled", "waiting")

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiting: deque[_Waiting[Item, Result]] = deque()
        self.busy: list[set[Hashable]] = []
        self.scheduled = False


class _Lanes(dict[int, _Lane[Item, Result]]):
    def __missing__(self, number: int) -> _Lane[Item, Result]:
        lane = self[number] = _Lane(number)
        return lane


class Batcher(Generic[Item, Result]):
    """`run(partition, items)` answers one result per item, in order.

    A result that is an exception is raised to that item's caller only. If `run` itself raises,
    every caller of that batch gets the error, and the next batch goes on; but a CommandInvalid
    reaches only the caller whose item can't be packed.
    """

    def __init__(
        self,
        run: Callable[[int, list[Item]], Awaitable[Sequence[Result | Exception]]],
        limits: Limits,
        unanswered: BytesUnanswered | None = None,
    ) -> None:
        self._run = run
        self._unanswered = unanswered or BytesUnanswered(limits)
        self._items_max = limits.batch_items_max
        self._bytes_max = limits.batch_bytes_max
        self._waiting_max = limits.batch_waiting_items_max
        self._loop = asyncio.get_running_loop()
        self._lanes: _Lanes[Item, Result] = _Lanes()
        self._batches: set[asyncio.Task[None]] = set()
        self._waiting = 0
        self._closed = False

    def submit(
        self,
        partition: int,
        item: Item,
        order: Hashable = None,
        size_bytes: int = 0,
        answer_bytes: int = 0,
    ) -> asyncio.Future[Result]:
        """Join the next batch. Cancelling before it leaves takes the item out of it.

        `size_bytes` are held in this process until the answer is there; `answer_bytes` are a guess
        at what the item brings back, and only keep its batch small.

        Items of one `order` (a conversation, a connection) take effect as they were submitted;
        None promises nothing, which is right for callers that await one before the next.
        """
        if self._closed:
            raise RedisUnavailable("this process is shutting down and takes no more calls")
        if self._waiting >= self._waiting_max:
            raise Overloaded("batch_waiting_items_max", self._waiting_max)
        self._unanswered.add(size_bytes)
        future: asyncio.Future[Result] = self._loop.create_future()
        lane = self._lanes[partition]
        lane.waiting.append((item, order, size_bytes, size_bytes + answer_bytes, future))
        self._waiting += 1
        if not lane.scheduled and len(lane.busy) < IN_FLIGHT_MAX:
            # In the next turn of the loop, so that all who call in this turn share a batch.
            lane.scheduled = True
            self._loop.call_soon(self._begin, lane)
        return future

    async def close(self) -> None:
        """Take no more; finish what was submitted."""
        self._closed = True
        while self._waiting or self._batches:
            await asyncio.sleep(0)
            await asyncio.gather(*self._batches, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _begin(self, lane: _Lane[Item, Result]) -> None:
        """Send the next batch, if there is one to send and a place in flight for it."""
        lane.scheduled = False
        if not lane.waiting or len(lane.busy) >= IN_FLIGHT_MAX:
            return
        batch, orders = self._next_batch(lane)
        if batch:
            lane.busy.append(orders)
            task = self._loop.create_task(self._run_batch(lane, batch, orders))
            self._batches.add(task)
            task.add_done_callback(self._batches.discard)
            # The second goes a turn later, when the first is on its way: sent together, both
            # replies would come together, and nothing would overlap.
            if lane.waiting:
                self._schedule(lane)

    def _schedule(self, lane: _Lane[Item, Result]) -> None:
        if not lane.scheduled:
            lane.scheduled = True
            self._loop.call_soon(self._begin, lane)

    def _next_batch(
        self, lane: _Lane[Item, Result]
    ) -> tuple[list[_Waiting[Item, Result]], set[Hashable]]:
        waiting, items_max = lane.waiting, self._items_max
        if not lane.busy and len(waiting) >= SPLIT_ITEMS_MIN:
            items_max = min(items_max, (len(waiting) + 1) // 2)
        busy = lane.busy[0] if lane.busy else ()
        batch: list[_Waiting[Item, Result]] = []
        held: list[_Waiting[Item, Result]] = []
        orders: set[Hashable] = set()
        size_bytes = 0
        # What is held back is looked at again next time, so only so many are looked at.
        while waiting and len(batch) < items_max and len(held) < self._items_max:
            entry = waiting[0]
            _, order, held_bytes, item_bytes, future = entry
            if batch and size_bytes + item_bytes > self._bytes_max:
                break
            waiting.popleft()
            if future.done():
                self._waiting -= 1
                self._unanswered.count -= held_bytes
            elif order is not None and order in busy:
                held.append(entry)
            else:
                batch.append(entry)
                size_bytes += item_bytes
                if order is not None:
                    orders.add(order)
        self._waiting -= len(batch)
        waiting.extendleft(reversed(held))
        return batch, orders

    async def _results(self, partition: int, items: list[Item]) -> Sequence[Result | Exception]:
        """One result per item, in order; an error of the whole call is every item's error."""
        try:
            results = await self._run(partition, items)
            if len(results) != len(items):
                raise ScriptFailed(f"a batch of {len(items)} got {len(results)} results")
        except CommandInvalid as error:
            if len(items) == 1:
                return [error]
            # Nothing was sent. The halves find the item that can't be packed, and the others go.
            middle = len(items) // 2
            first = await self._results(partition, items[:middle])
            return [*first, *await self._results(partition, items[middle:])]
        except Exception as error:
            return [error] * len(items)
        return results

    async def _run_batch(
        self,
        lane: _Lane[Item, Result],
        batch: list[_Waiting[Item, Result]],
        orders: set[Hashable],
    ) -> None:
        try:
            results = await self._results(lane.number, [entry[0] for entry in batch])
            for (*_, future), result in zip(batch, results, strict=True):
                try:
                    if isinstance(result, Exception):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
                except asyncio.InvalidStateError:
                    continue  # its caller gave up meanwhile
        except BaseException:
            for entry in batch:
                entry[4].cancel()
            raise
        finally:
            lane.busy.remove(orders)
            self._unanswered.count -= sum(entry[2] for entry in batch)
            # Behind the callers that were just answered, who often call again at once: what
            # they submit is then sent in the same turn.
            self._schedule(lane)
