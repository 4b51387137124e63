"""Answers `takeFromQueue` within the byte budgets of the client and the gateway.

A take first waits for the bytes of one fetch, which are enough for the largest message. It fetches
again only while the bytes for another fetch are free at once, then answers. So a take never waits
while it has messages. If an answer can't be delivered, its messages are pending again at once.
`deleteMessages` deletes when the operating system has the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from angarium.pickup import methods
from angarium.pickup.answers import RpcAnswer
from angarium.pickup.budget import ByteBudget
from angarium.pickup.client_socket import ClientSocket
from angarium.pickup.did_store import DidStore
from angarium.pickup.errors import AnswersExceeded
from angarium.pickup.limits import PickupLimits
from angarium.pickup.model import encode_message, queue_name
from angarium.pickup.queues import GRACE_POLL_S, GRACE_WAIT_S, PickupQueues
from angarium.pickup.store import ANY_BYTES, PULL_BYTES_MAX, TakeLimits
from angarium.runtime import log
from angarium.runtime.errors import AngariumError, Overloaded

# Shorter than the usual time-out of a caller, so that the caller still waits for the answer.
WAIT_S_MAX = 20.0


def fetch_bytes(limits: PickupLimits) -> int:
    """Bytes to reserve for one fetch, before its size is known."""
    return max(PULL_BYTES_MAX, limits.pickup_message_bytes_max)


@dataclass
class _TakeProgress:
    """The messages of one take so far; `reserved` are bytes of the client's budget."""

    queue: str
    did: str
    messages_max: int
    bytes_max: int
    first_bytes_max: int
    reserved: int
    encoded: list[tuple[int, bytes]] = field(default_factory=list)  # by sequence
    size: int = 0
    payload_bytes: int = 0
    due: dict[str, dict[str, str]] = field(default_factory=dict)  # by queue, then by id

    def next_limits(self, fetch: int) -> TakeLimits:
        left = self.bytes_max - self.payload_bytes
        first = self.first_bytes_max if not self.encoded else left
        return TakeLimits(self.messages_max - len(self.encoded), min(fetch, left), first)

    @property
    def full(self) -> bool:
        left = self.bytes_max - self.payload_bytes
        return left <= 0 or len(self.encoded) >= self.messages_max


class TakeHandler:
    """Calls `removed` with the ids of deleted messages and how many of them existed."""

    def __init__(
        self,
        queues: PickupQueues,
        dids: DidStore,
        limits: PickupLimits,
        spawn: Callable[[Coroutine[Any, Any, object]], None],
        removed: Callable[[Sequence[str], int], None],
    ) -> None:
        self._queues = queues
        self._dids = dids
        self._limits = limits
        self._spawn = spawn
        self._removed = removed
        self._fetch_bytes = fetch_bytes(limits)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._loop = asyncio.get_running_loop()
        self._log = log.logger("angarium.pickup")

    async def run(self, client: ClientSocket, params: bytes, answer: RpcAnswer) -> list[str]:
        """Take and answer; returns the ids of the messages in the answer."""
        take = methods.read_take(params, self._limits)
        if not answer.wanted:
            answer.result(b"")  # a notification gets no answer, so no messages either
            return []
        progress = self._begin(client, take)
        await self._reserve(client.budget, answer)
        progress.reserved = self._fetch_bytes
        try:
            await self._take(client, progress, answer)
            if take.by_did:
                for queue in await self._dids.queues_of(progress.queue):
                    if not progress.full:
                        progress.queue = queue
                        await self._take(client, progress, answer)
                progress.encoded.sort()
            written = partial(self._written, progress.due, bool(take.delete_messages))
            encoded = b",".join(each for _, each in progress.encoded)
            answer.result(b"[" + encoded + b"]", written)
        finally:
            client.budget.release(progress.reserved)
        return [each for some in progress.due.values() for each in some]

    async def _take(self, client: ClientSocket, progress: _TakeProgress, answer: RpcAnswer) -> None:
        # Concurrent takes of a queue run one after the other, so each gets a contiguous range.
        async with self._lock_of(progress.queue):
            give_up_s = self._loop.time() + GRACE_WAIT_S
            while client.open and await self._fill(client.budget, progress, answer):
                if self._loop.time() > give_up_s:
                    break
                await self._pause(client.budget, progress, answer)

    def _begin(self, client: ClientSocket, take: methods.TakeParams) -> _TakeProgress:
        messages_max = self._limits.pickup_take_messages_max
        bytes_max, first = self._limits.pickup_take_bytes_max, ANY_BYTES
        if take.limit is not None:
            messages_max = min(take.limit, messages_max)
        if take.limit_bytes is not None:
            # The client's limit also holds for the first message.
            bytes_max, first = min(take.limit_bytes, bytes_max), take.limit_bytes
        queue = queue_name(client.tenant, take.connection)
        return _TakeProgress(queue, take.did, messages_max, bytes_max, first, 0)

    def _lock_of(self, queue: str) -> asyncio.Lock:
        lock = self._locks.get(queue)
        if lock is None:
            lock = self._locks[queue] = asyncio.Lock()
        return lock

    async def _reserve(self, budget: ByteBudget, answer: RpcAnswer) -> None:
        batch = answer.batch
        if batch is None or batch.answer_bytes < self._fetch_bytes:
            if not budget.charge_if_free(self._fetch_bytes):
                await self._wait(budget)
        elif not batch.has_space(self._fetch_bytes) or not budget.charge_if_free(self._fetch_bytes):
            # A batch that holds answers does not wait: two batches could wait for each other.
            raise AnswersExceeded("the answers of this batch are full; ask for the rest alone")

    async def _wait(self, budget: ByteBudget) -> None:
        granted: asyncio.Future[None] = self._loop.create_future()

        def grant() -> None:
            if granted.done():
                budget.release(self._fetch_bytes)  # the take has given up
            else:
                granted.set_result(None)

        budget.request(self._fetch_bytes, grant)
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                await granted
        except TimeoutError:
            raise Overloaded("pickup_client_answer_bytes_max or that of the gateway") from None
        except BaseException:
            if granted.done() and not granted.cancelled():
                budget.release(self._fetch_bytes)
            raise

    async def _pause(self, budget: ByteBudget, progress: _TakeProgress, answer: RpcAnswer) -> None:
        """An earlier session may still acknowledge older messages; no bytes are held meanwhile."""
        reserved, progress.reserved = progress.reserved, 0
        budget.release(reserved)
        await asyncio.sleep(GRACE_POLL_S)
        await self._reserve(budget, answer)
        progress.reserved = self._fetch_bytes

    async def _fill(self, budget: ByteBudget, progress: _TakeProgress, answer: RpcAnswer) -> bool:
        """Returns whether the take has to wait for the end of a grace period."""
        while True:
            try:
                taken = await self._queues.take_now(
                    progress.queue, progress.did, progress.next_limits(self._fetch_bytes)
                )
            except Exception as error:
                if not progress.encoded:
                    raise
                self._log.warning("take_cut_short", queue=progress.queue, error=repr(error))
                return False
            if taken.in_grace:
                return not progress.encoded
            progress.due.setdefault(progress.queue, {}).update(taken.due)
            for message in taken.messages:
                encoded = encode_message(message)
                progress.encoded.append((message.sequence, encoded))
                progress.size += len(encoded) + 1
                progress.payload_bytes += len(message.payload)
            if progress.size > progress.reserved:
                budget.charge(progress.size - progress.reserved)
                progress.reserved = progress.size
            if not taken.more or not taken.messages or progress.full:
                return False
            if answer.batch is not None and not answer.batch.has_space(
                progress.size + self._fetch_bytes
            ):
                return False
            missing = progress.size + self._fetch_bytes - progress.reserved
            if not budget.charge_if_free(missing):
                return False
            progress.reserved += missing

    def _written(self, due: Mapping[str, Mapping[str, str]], delete: bool, ok: bool) -> None:
        for queue, some in due.items():
            if some and (delete or not ok):
                settle = self._delete(queue, list(some)) if ok else self._give_back(queue, some)
                self._spawn(settle)

    async def _delete(self, queue: str, ids: list[str]) -> None:
        try:
            self._removed(ids, await self._queues.remove(queue, ids))
        except AngariumError as error:
            self._log.warning("taken_not_removed", queue=queue, error=repr(error))

    async def _give_back(self, queue: str, due: Mapping[str, str]) -> None:
        try:
            await self._queues.give_back(queue, due)
        except AngariumError as error:
            # The sweeper makes them pending again when their time is over.
            self._log.warning("taken_not_given_back", queue=queue, error=repr(error))
