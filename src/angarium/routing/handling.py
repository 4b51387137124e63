"""Handles the messages of one key, one after the other, by the retry policy of the function.

The number of attempts is stored in Redis. A failed message blocks its own key until its next
attempt is due. If an instance was lost while it had messages of a key in hand, each attempt at them
is counted before it is made, so that a message that ends its process is a dead letter in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from angarium.routing.errors import ItemInvalid
from angarium.routing.finished_keys import FailedAttempt, FinishedKey
from angarium.routing.items import InboundMessage, decode_inbound, id_of, response_to
from angarium.routing.store import RoutingStore
from angarium.routing.transitions import TriedMessage
from angarium.runtime.application import HandlerExit
from angarium.runtime.clock import Clock
from angarium.runtime.log import logger
from angarium.runtime.retry_policy import RetryPolicy

Handle = Callable[[InboundMessage], Awaitable[Any]]
Endings = list[tuple[str, str]]
"""Ids of messages that ended, each with the reason of its dead letter or ''."""
REASON_CHARS_MAX = 500
# Messages that took longer are acknowledged before the next one of their key: after a crash they
# are not handled again.
ACKNOWLEDGE_S = 0.05
# After this many attempts a message that was in hand when its instance was lost is handled alone
# among its like: the next loss then has one cause.
ATTEMPTS_TOGETHER = 2


@dataclass
class ConsumerMetrics:
    handled: int = 0
    failed: int = 0
    dead: int = 0
    released: int = 0
    registered: int = 0


@dataclass(frozen=True)
class KeyBatch:
    """Messages of one key, in order; one message if an attempt at it is on record."""

    partition: int
    recip_key: str
    items: Sequence[bytes]
    tried: TriedMessage | None = None


class HandlingInstance(Protocol):
    """The instance whose keys these are."""

    uid: str
    session: str

    @property
    def may_handle(self) -> bool:
        """Whether the keys are still its own, and it takes work."""


class MessageHandling:
    def __init__(
        self,
        instance: HandlingInstance,
        store: RoutingStore,
        handle: Handle,
        attempts_max: int,
        retry: RetryPolicy,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self.metrics = ConsumerMetrics()
        self._instance = instance
        self._store = store
        self._handle = handle
        self._attempts_max = attempts_max if retry.retries is None else retry.retries + 1
        self._retry = retry
        self._log = logger("angarium.routing", uid=instance.uid)

    def goes_alone(self, batch: KeyBatch) -> bool:
        """Whether the message was tried so often that it may be what ended its instances."""
        together = min(ATTEMPTS_TOGETHER, self._attempts_max - 1)
        return batch.tried is not None and self._attempts_before(batch.tried) >= together

    async def run(self, batch: KeyBatch, endings: Endings) -> FinishedKey:
        """Handle the messages; `endings` has what ended also if this call is cancelled."""
        key, attempts = batch.recip_key, 0
        if batch.tried is not None and self._instance.may_handle:
            attempts = self._attempts_before(batch.tried)
            if attempts >= self._attempts_max:
                self._dead_letter(id_of(batch.items[0]), key, batch.tried.reason, endings)
                return FinishedKey(key, endings, attempts)
            attempts += 1
            begin = self._store.begin
            if not await begin(*self._begin_args(batch), attempts, self._instance.session):
                return FinishedKey(key, ())  # finishing finds that the key has another owner
        began_s = self._clock.monotonic()
        for place, item in enumerate(batch.items):
            if not self._instance.may_handle:
                break
            if place and self._clock.monotonic() - began_s > ACKNOWLEDGE_S:
                if not await self._acknowledged(batch, endings):
                    return FinishedKey(key, ())
                endings.clear()
                began_s = self._clock.monotonic()
            failed = await self._try(item, key, max(1, attempts), endings)
            if failed is not None:
                return FinishedKey(key, endings, attempts, failed)
        return FinishedKey(key, endings, attempts)

    async def _acknowledged(self, batch: KeyBatch, endings: Endings) -> bool:
        """Finish slow messages one by one; False if the key has another owner."""
        done, instance = FinishedKey(batch.recip_key, tuple(endings), keep=True), self._instance
        finish = self._store.finish
        (status,) = await finish(instance.uid, batch.partition, [done], instance.session)
        return status != "not_owner"

    def _begin_args(self, batch: KeyBatch) -> tuple[str, str, str]:
        return self._instance.uid, batch.recip_key, id_of(batch.items[0])

    def _attempts_before(self, tried: TriedMessage) -> int:
        if not tried.id:
            # One of several messages may have ended the instance: each gets an attempt of its own.
            return min(tried.attempts, self._attempts_max - 1)
        return tried.attempts if tried.id == id_of(tried.message) else 0

    async def _try(
        self, item: bytes, key: str, attempt: int, endings: Endings
    ) -> FailedAttempt | None:
        try:
            message = decode_inbound(item, key)
        except ItemInvalid as error:
            self._dead_letter(id_of(item), key, str(error), endings)
            return None
        try:
            answer = await self._call(message)
        except Exception as error:
            return self._failed(message, error, attempt, endings)
        if message.txn_id is not None:
            await self._respond(message, answer)
        endings.append((message.id, ""))
        self.metrics.handled += 1
        return None

    async def _call(self, message: InboundMessage) -> Any:
        try:
            async with asyncio.timeout(self._retry.timeout_s):
                return await self._handle(message)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The handler awaited something that was cancelled; this task was not cancelled.
            raise HandlerExit("the handler was cancelled from inside") from None

    def _failed(
        self,
        message: InboundMessage,
        error: Exception,
        attempt: int,
        endings: Endings,
    ) -> FailedAttempt | None:
        """What to try again later; None if the message is a dead letter."""
        reason = repr(error)[:REASON_CHARS_MAX]
        again = self._retry.retries_error(error) and not isinstance(error, ItemInvalid)
        if not again or attempt >= self._attempts_max:
            self._dead_letter(message.id, message.recip_key, reason, endings)
            return None
        self.metrics.failed += 1
        delay_s = self._retry.next_delay_s(attempt)
        self._log.warning(
            "handler_failed", id=message.id, key=message.recip_key, attempt=attempt, error=reason,
            retry_in_s=round(delay_s, 3),
        )  # fmt: skip
        return FailedAttempt(message.id, attempt, round(delay_s * 1000), reason)

    async def _respond(self, message: InboundMessage, answer: Any) -> None:
        try:
            response = response_to(message, answer)
            if response is not None:
                await self._store.post_response(response)
        except Exception as error:
            # Redis is unavailable, or the result is not JSON: the caller runs into its time-out.
            self._log.warning("response_lost", id=message.id, error=repr(error))

    def _dead_letter(self, message_id: str, key: str, reason: str, endings: Endings) -> None:
        self.metrics.dead += 1
        self._log.error("message_dead", id=message_id, key=key, reason=reason)
        endings.append((message_id, reason[:REASON_CHARS_MAX] or "unknown"))
