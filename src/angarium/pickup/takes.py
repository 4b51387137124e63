"""Answers `takeFromQueue` within the bytes that a client and its gateway may hold.

A take first gets a share that one message fits into, and fetches by shares: when no other is free
at once, it answers what it has. So an answer is never larger than the budget, nobody waits while
holding something, and what is not answered stays pending. What was taken and can't be answered any
more is given back at once. `deleteMessages` deletes when the operating system has the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from angarium.pickup import methods
from angarium.pickup.answers import Answer
from angarium.pickup.budget import Budget
from angarium.pickup.client_socket import ClientSocket
from angarium.pickup.errors import AnswersExceeded
from angarium.pickup.mailbox import Mailbox
from angarium.pickup.model import encode_message, queue_name
from angarium.pickup.store import ANY_BYTES, PULL_BYTES_MAX, TakeLimits
from angarium.runtime import log
from angarium.runtime.errors import AngariumError, Overloaded
from angarium.runtime.limits import Limits

# Less than callers usually wait: an answer that nobody waits for would hold messages in vain.
WAIT_S_MAX = 20.0


def share_of(limits: Limits) -> int:
    """Bytes that are reserved for one fetch, before it is known what it brings."""
    return max(PULL_BYTES_MAX, limits.pickup_message_bytes_max)


@dataclass
class _Page:
    """What one take has so far; `reserved` are bytes of the client's budget."""

    queue: str
    did: str
    messages_max: int
    bytes_max: int
    first_bytes_max: int
    reserved: int
    encoded: list[bytes] = field(default_factory=list)
    size: int = 0
    payload_bytes: int = 0
    due: dict[str, bytes] = field(default_factory=dict)

    def limits(self, share: int) -> TakeLimits:
        left = self.bytes_max - self.payload_bytes
        first = self.first_bytes_max if not self.encoded else left
        return TakeLimits(self.messages_max - len(self.encoded), min(share, left), first)

    @property
    def full(self) -> bool:
        left = self.bytes_max - self.payload_bytes
        return left <= 0 or len(self.encoded) >= self.messages_max


class Takes:
    """`removed` is called with what deleted messages' ids were, when they are gone."""

    def __init__(
        self,
        mailbox: Mailbox,
        limits: Limits,
        spawn: Callable[[Coroutine[Any, Any, object]], None],
        removed: Callable[[list[str], int], None],
    ) -> None:
        self._mailbox = mailbox
        self._limits = limits
        self._spawn = spawn
        self._removed = removed
        self._share = share_of(limits)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._loop = asyncio.get_running_loop()
        self._log = log.logger("angarium.pickup")

    async def run(self, client: ClientSocket, params: bytes, answer: Answer) -> list[str]:
        """Take and answer; the ids that were answered."""
        take = methods.read_take(params, self._limits)
        if not answer.wanted:
            answer.result(b"")  # nobody would get them
            return []
        page = self._page(client, take)
        await self._reserve(client.budget, answer)
        page.reserved = self._share
        try:
            # Two takes of a queue do not mix: each gets what follows on the other's.
            async with self._turn_of(page.queue):
                if client.open:
                    await self._fill(client.budget, page, answer)
            written = partial(self._written, page.queue, page.due, bool(take.delete_messages))
            answer.result(b"[" + b",".join(page.encoded) + b"]", written)
        finally:
            client.budget.release(page.reserved)
        return list(page.due)

    def _page(self, client: ClientSocket, take: methods.Take) -> _Page:
        messages_max = self._limits.pickup_take_messages_max
        bytes_max, first = self._limits.pickup_take_bytes_max, ANY_BYTES
        if take.limit is not None:
            messages_max = min(take.limit, messages_max)
        if take.limit_bytes is not None:
            # The client's own limit holds for the first message too.
            bytes_max, first = min(take.limit_bytes, bytes_max), take.limit_bytes
        queue = queue_name(client.tenant, take.connection)
        return _Page(queue, take.did, messages_max, bytes_max, first, 0)

    def _turn_of(self, queue: str) -> asyncio.Lock:
        turn = self._turns.get(queue)
        if turn is None:
            turn = self._turns[queue] = asyncio.Lock()
        return turn

    async def _reserve(self, budget: Budget, answer: Answer) -> None:
        batch = answer.batch
        if batch is None or batch.held < self._share:
            if not budget.charge_if_free(self._share):
                await self._wait(budget)
        elif not batch.has_space(self._share) or not budget.charge_if_free(self._share):
            # Two batches that wait for each other would wait for ever.
            raise AnswersExceeded("the answers of this batch are full; ask for the rest alone")

    async def _wait(self, budget: Budget) -> None:
        granted: asyncio.Future[None] = self._loop.create_future()

        def grant() -> None:
            if granted.done():
                budget.release(self._share)  # its caller gave up
            else:
                granted.set_result(None)

        budget.request(self._share, grant)
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                await granted
        except TimeoutError:
            raise Overloaded("pickup_client_answer_bytes_max or that of the gateway") from None
        except BaseException:
            if granted.done() and not granted.cancelled():
                budget.release(self._share)
            raise

    async def _fill(self, budget: Budget, page: _Page, answer: Answer) -> None:
        while True:
            try:
                taken = await self._mailbox.take_portion(
                    page.queue, page.did, page.limits(self._share)
                )
            except Exception as error:
                if not page.encoded:
                    raise
                self._log.warning("take_cut_short", queue=page.queue, error=repr(error))
                return
            page.due |= taken.due
            for message in taken.messages:
                encoded = encode_message(message)
                page.encoded.append(encoded)
                page.size += len(encoded) + 1
                page.payload_bytes += len(message.payload)
            if page.size > page.reserved:
                budget.charge(page.size - page.reserved)
                page.reserved = page.size
            if not taken.more or not taken.messages or page.full:
                return
            if answer.batch is not None and not answer.batch.has_space(page.size + self._share):
                return
            missing = page.size + self._share - page.reserved
            if not budget.charge_if_free(missing):
                return
            page.reserved += missing

    def _written(self, queue: str, due: Mapping[str, bytes], delete: bool, ok: bool) -> None:
        if due and (delete or not ok):
            settle = self._delete(queue, list(due)) if ok else self._give_back(queue, due)
            self._spawn(settle)

    async def _delete(self, queue: str, ids: list[str]) -> None:
        try:
            self._removed(ids, await self._mailbox.remove(queue, ids))
        except AngariumError as error:
            self._log.warning("taken_not_removed", queue=queue, error=repr(error))

    async def _give_back(self, queue: str, due: Mapping[str, bytes]) -> None:
        try:
            await self._mailbox.give_back(queue, due)
        except AngariumError as error:
            # They are pending again when their time is over.
            self._log.warning("taken_not_given_back", queue=queue, error=repr(error))
