"""Combines single calls that are made at the same time into one call of a script.

A batch holds the items that were submitted while earlier batches were in flight. So an item does
not wait when nothing is in flight, and batches grow with the load. Two batches of a partition may
be in flight: Redis works on one while this process prepares the other. Items with the same `order`
take effect as they were submitted: an item waits while an earlier item of its order is in flight.
Items and bytes are limited, for each batch and for everything that has no answer yet.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, Self, TypeVar

from angarium.runtime.errors import CommandInvalid, Overloaded, RedisUnavailable, ScriptFailed
from angarium.runtime.limits import Limits

Item = TypeVar("Item")
Result = TypeVar("Result")

# Redis works on one batch while the other is prepared. A third would only wait at the server.
IN_FLIGHT_MAX = 2
# The fixed cost of a call equals the cost of about this many items, so smaller batches are not
# split into two calls.
SPLIT_ITEMS_MIN = 32


_Waiting = tuple[Item, Hashable, int, int, "asyncio.Future[Result] | None"]
"""Item, order, bytes, bytes with the answer, who awaits the result. A plain tuple, because there
are many."""


class BytesUnanswered:
    """Counts the bytes of all items without an answer, for all batchers of a process."""

    __slots__ = ("bytes_max", "count")

    def __init__(self, limits: Limits) -> None:
        self.bytes_max = limits.batch_waiting_bytes_max
        self.count = 0


class _PartitionQueue(Generic[Item, Result]):
    """The waiting items of one partition, and the orders in flight: one set for each batch.

    `ordered` is how many of the waiting items have an order, `bytes` what they add to a batch.
    """

    __slots__ = ("bytes", "in_flight", "number", "ordered", "scheduled", "waiting")

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiting: deque[_Waiting[Item, Result]] = deque()
        self.in_flight: list[set[Hashable]] = []
        self.scheduled = False
        self.ordered = 0
        self.bytes = 0


class _PartitionQueues(dict[int, _PartitionQueue[Item, Result]]):
    def __missing__(self, number: int) -> _PartitionQueue[Item, Result]:
        queue = self[number] = _PartitionQueue(number)
        return queue


class Batcher(Generic[Item, Result]):
    """Calls `run(partition, items)`, which returns one result per item, in order.

    A result that is an exception is raised to the caller of that item only. If `run` itself raises,
    every caller of that batch gets the error and the next batch is sent. A CommandInvalid is
    raised only to the caller whose item can't be encoded.

    Items of `send` have no caller that waits: `receive` gets them and their results, one batch at a
    time, which costs less than a future for each. It must not raise.
    """

    def __init__(
        self,
        run: Callable[[int, list[Item]], Awaitable[Sequence[Result | Exception]]],
        limits: Limits,
        unanswered: BytesUnanswered | None = None,
        receive: Callable[[Sequence[Item], Sequence[Result | Exception]], None] | None = None,
    ) -> None:
        self._run = run
        self._receive = receive
        self._unanswered = unanswered or BytesUnanswered(limits)
        self._items_max = limits.batch_items_max
        self._bytes_max = limits.batch_bytes_max
        self._waiting_max = limits.batch_waiting_items_max
        self._loop = asyncio.get_running_loop()
        self._queues: _PartitionQueues[Item, Result] = _PartitionQueues()
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
        """Add the item to the next batch. An item whose future is cancelled before is not sent.

        `size_bytes` stay in this process's memory until the answer arrives. `answer_bytes` is an
        estimate of the answer's size; it only limits the size of the batch.

        Items of one `order` (a conversation, a connection) take effect as they were submitted.
        With None there is no order; use it if the caller awaits each result before the next call.
        """
        future: asyncio.Future[Result] = self._loop.create_future()
        self._add(partition, (item, order, size_bytes, size_bytes + answer_bytes, future))
        return future

    def send(self, partition: int, item: Item, size_bytes: int = 0) -> None:
        """As `submit`, for `receive`."""
        self._add(partition, (item, None, size_bytes, size_bytes, None))

    def _add(self, partition: int, entry: _Waiting[Item, Result]) -> None:
        size_bytes = entry[2]
        if self._waiting >= self._waiting_max:
            if self._closed:
                raise RedisUnavailable("this process is shutting down and takes no more calls")
            raise Overloaded("batch_waiting_items_max", self._waiting_max)
        if size_bytes:
            # An item larger than the limit is accepted when nothing else is unanswered. An item
            # without a payload is always accepted: such calls often free the bytes.
            unanswered = self._unanswered
            if unanswered.count and unanswered.count + size_bytes > unanswered.bytes_max:
                raise Overloaded("batch_waiting_bytes_max", unanswered.bytes_max)
            unanswered.count += size_bytes
        queue = self._queues[partition]
        queue.waiting.append(entry)
        queue.bytes += entry[3]
        if entry[1] is not None:
            queue.ordered += 1
        self._waiting += 1
        if not queue.scheduled and len(queue.in_flight) < IN_FLIGHT_MAX:
            # In the next turn of the loop, so that all calls of this turn share a batch.
            queue.scheduled = True
            self._loop.call_soon(self._begin, queue)

    async def close(self) -> None:
        """Refuse new items and wait for the results of all that were submitted."""
        self._closed = True
        self._waiting_max = 0
        while self._waiting or self._batches:
            await asyncio.sleep(0)
            await asyncio.gather(*self._batches, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _begin(self, queue: _PartitionQueue[Item, Result]) -> None:
        """Send the next batch, if items wait and fewer than two batches are in flight."""
        queue.scheduled = False
        if not queue.waiting or len(queue.in_flight) >= IN_FLIGHT_MAX:
            return
        batch, orders = self._next_batch(queue)
        if batch:
            queue.in_flight.append(orders)
            task = self._loop.create_task(self._run_batch(queue, batch, orders))
            self._batches.add(task)
            task.add_done_callback(self._batches.discard)
            # The second batch is sent a turn after the first. If both were sent together, both
            # replies would arrive together and no work would overlap.
            if queue.waiting:
                self._schedule(queue)

    def _schedule(self, queue: _PartitionQueue[Item, Result]) -> None:
        if not queue.scheduled:
            queue.scheduled = True
            self._loop.call_soon(self._begin, queue)

    def _next_batch(
        self, queue: _PartitionQueue[Item, Result]
    ) -> tuple[list[_Waiting[Item, Result]], set[Hashable]]:
        waiting, items_max = queue.waiting, self._items_max
        if not queue.in_flight and len(waiting) >= SPLIT_ITEMS_MIN:
            items_max = min(items_max, (len(waiting) + 1) // 2)
        if not queue.ordered:
            # The common case: the next items are the batch.
            if len(waiting) <= items_max:
                taken, size_bytes = list(waiting), queue.bytes
                waiting.clear()
            else:
                taken = [waiting.popleft() for _ in range(items_max)]
                size_bytes = sum([entry[3] for entry in taken])
            fits = size_bytes <= self._bytes_max
            if fits and not [True for each in taken if each[4] is not None and each[4].done()]:
                self._waiting -= len(taken)
                queue.bytes -= size_bytes
                return taken, set()
            waiting.extendleft(reversed(taken))
        orders_in_flight = queue.in_flight[0] if queue.in_flight else ()
        batch: list[_Waiting[Item, Result]] = []
        deferred: list[_Waiting[Item, Result]] = []
        orders: set[Hashable] = set()
        size_bytes = 0
        # The next batch examines deferred items again, so their number is limited.
        while waiting and len(batch) < items_max and len(deferred) < self._items_max:
            entry = waiting[0]
            _, order, unanswered_bytes, item_bytes, future = entry
            if batch and size_bytes + item_bytes > self._bytes_max:
                break
            waiting.popleft()
            queue.bytes -= item_bytes
            done = future is not None and future.done()
            if order is not None and order in orders_in_flight and not done:
                deferred.append(entry)
                queue.bytes += item_bytes
                continue
            self._waiting -= 1
            if order is not None:
                queue.ordered -= 1
            if done:
                self._unanswered.count -= unanswered_bytes
                continue
            batch.append(entry)
            size_bytes += item_bytes
            if order is not None:
                orders.add(order)
        waiting.extendleft(reversed(deferred))
        return batch, orders

    async def _results(self, partition: int, items: list[Item]) -> Sequence[Result | Exception]:
        """One result per item, in order. An error of the call is the result of every item."""
        try:
            results = await self._run(partition, items)
            if len(results) != len(items):
                raise ScriptFailed(f"a batch of {len(items)} got {len(results)} results")
        except CommandInvalid as error:
            if len(items) == 1:
                return [error]
            # Nothing was sent. Halving the batch finds the item that can't be encoded, and the
            # other items are sent.
            middle = len(items) // 2
            first = await self._results(partition, items[:middle])
            return [*first, *await self._results(partition, items[middle:])]
        except Exception as error:
            return [error] * len(items)
        return results

    async def _run_batch(
        self,
        queue: _PartitionQueue[Item, Result],
        batch: list[_Waiting[Item, Result]],
        orders: set[Hashable],
    ) -> None:
        items = [entry[0] for entry in batch]
        try:
            results = await self._results(queue.number, items)
            if self._receive is not None:
                self._receive(items, results)
            else:
                _resolve(batch, results)
        except BaseException:
            for *_, future in batch:
                if future is not None:
                    future.cancel()
            raise
        finally:
            queue.in_flight.remove(orders)
            self._unanswered.count -= sum([entry[2] for entry in batch])
            # The callers that just got their results run first. They often call again at once, and
            # those calls then join the same batch.
            self._schedule(queue)


def _resolve(
    batch: Sequence[_Waiting[Item, Result]], results: Sequence[Result | Exception]
) -> None:
    for entry, result in zip(batch, results, strict=True):
        future = entry[4]
        if future is None or future.done():
            continue  # the caller was cancelled meanwhile
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
