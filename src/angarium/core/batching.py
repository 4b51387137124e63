"""Gathers single calls that are made at the same time into one call for all of them.

A batch is what arrived while the last one was in flight: nothing waits when nothing is in
flight, and the batches grow by themselves when the load does. One batch per partition is in
flight at a time, so items of a partition take effect in the order they were submitted. Bounded
in items, bytes and callers waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from angarium.core.errors import Overloaded, RedisUnavailable, ScriptFailed
from angarium.core.limits import Limits

Item = TypeVar("Item")
Result = TypeVar("Result")


_Waiting = tuple[Item, int, asyncio.Future[Result]]
"""An item, its size in bytes, and who waits for it: a bare tuple, for there are many."""


class Batcher(Generic[Item, Result]):
    """`run(partition, items)` answers one result per item, in order.

    A result that is an exception is raised to that item's caller only; if `run` itself raises,
    every caller of that batch gets the error, and the next batch goes on.
    """

    def __init__(
        self,
        run: Callable[[int, list[Item]], Awaitable[Sequence[Result | Exception]]],
        limits: Limits,
    ) -> None:
        self._run = run
        self._limits = limits
        self._lanes: dict[int, deque[_Waiting[Item, Result]]] = {}
        self._drains: dict[int, asyncio.Task[None]] = {}
        self._waiting = 0
        self._closed = False

    def submit(self, partition: int, item: Item, size_bytes: int = 0) -> asyncio.Future[Result]:
        """Join the next batch. Cancelling before it leaves takes the item out of it."""
        if self._closed:
            raise RedisUnavailable("this process is shutting down and takes no more calls")
        if self._waiting >= self._limits.batch_waiting_items_max:
            raise Overloaded("batch_waiting_items_max", self._limits.batch_waiting_items_max)
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        lane = self._lanes.setdefault(partition, deque())
        lane.append((item, size_bytes, future))
        self._waiting += 1
        if partition not in self._drains:
            # The task begins in the next turn of the loop, so that all who call in this turn
            # share the first batch.
            drain = asyncio.create_task(self._drain(partition, lane))
            self._drains[partition] = drain
        return future

    async def close(self) -> None:
        """Take no more; finish what was submitted."""
        self._closed = True
        await asyncio.gather(*self._drains.values(), return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _drain(self, partition: int, lane: deque[_Waiting[Item, Result]]) -> None:
        batch: list[_Waiting[Item, Result]] = []
        try:
            while lane:
                batch = self._next_batch(lane)
                if batch:
                    await self._run_batch(partition, batch)
        except BaseException:
            for _, _, future in (*batch, *lane):
                future.cancel()
            self._waiting -= len(lane)
            lane.clear()
            raise
        finally:
            del self._drains[partition]

    def _next_batch(self, lane: deque[_Waiting[Item, Result]]) -> list[_Waiting[Item, Result]]:
        batch: list[_Waiting[Item, Result]] = []
        size_bytes = 0
        while lane and len(batch) < self._limits.batch_items_max:
            if batch and size_bytes + lane[0][1] > self._limits.batch_bytes_max:
                break
            waiting = lane.popleft()
            self._waiting -= 1
            if not waiting[2].done():
                batch.append(waiting)
                size_bytes += waiting[1]
        return batch

    async def _run_batch(self, partition: int, batch: list[_Waiting[Item, Result]]) -> None:
        try:
            results = await self._run(partition, [item for item, _, _ in batch])
            if len(results) != len(batch):
                raise ScriptFailed(f"a batch of {len(batch)} got {len(results)} results")
        except Exception as error:
            results = [error] * len(batch)
        for (_, _, future), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
