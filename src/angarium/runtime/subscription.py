"""Pub/Sub that comes back by itself, and says when something may have been missed.

Pub/Sub keeps nothing: what was published while no connection stood is gone. So each batch
tells whether it is the first after a (re)connection (`gap`), and whoever needs certainty reads
the truth from Redis then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from angarium.runtime import log
from angarium.runtime.backoff import Backoff
from angarium.runtime.errors import OutcomeUnknown, RedisUnavailable
from angarium.runtime.wire import ReplyError, Wire

# A connection on which nothing was heard for this long, not even the answer to a PING sent
# half-way, is dead though the kernel does not know it yet.
SILENCE_MAX_S = 10.0


class Message(NamedTuple):
    channel: bytes
    payload: bytes


@dataclass(frozen=True)
class Batch:
    """What arrived since the last look. `gap`: something may have been missed.

    It was missed behind the first `before_gap` messages and in front of the others.
    """

    messages: list[Message]
    gap: bool
    before_gap: int = 0


class Subscription:
    """`async with redis.subscribe("a") as subscription: batch = await subscription.receive()`."""

    def __init__(
        self,
        open_subscriber: Callable[[Callable[[Any], None]], Awaitable[Wire]],
        channels: Sequence[str],
        messages_max: int,
    ) -> None:
        self._open = open_subscriber
        self._channels = tuple(channels)
        self._messages_max = messages_max
        self._messages: list[Message] = []
        self._gap = False
        self._before_gap = 0
        self._arrived = asyncio.Event()
        self._confirmed = 0
        self._wire: Wire | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._log = log.logger("angarium.redis")
        self.subscribed = asyncio.Event()

    async def receive(self) -> Batch:
        """Everything that is waiting; waits for the first. Never empty unless `gap`."""
        await self._arrived.wait()
        self._arrived.clear()
        messages, self._messages = self._messages, []
        gap, self._gap = self._gap, False
        if self._wire is not None:
            self._wire.resume_reading()
        before_gap, self._before_gap = self._before_gap, 0
        return Batch(messages, gap, before_gap)

    async def __aenter__(self) -> Self:
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    async def _keep(self) -> None:
        backoff = Backoff()
        while True:
            try:
                self._wire = await self._open(self._take)
            except (RedisUnavailable, OutcomeUnknown):
                await asyncio.sleep(backoff.next_delay_s())
                continue
            try:
                self._confirmed = 0
                self._wire.send([("SUBSCRIBE", *self._channels)])
                await self._listen(self._wire)
            finally:
                if self.subscribed.is_set():
                    backoff.reset()
                self.subscribed.clear()
                self._wire.close()
            await asyncio.sleep(backoff.next_delay_s())

    async def _listen(self, wire: Wire) -> None:
        """Until the wire is lost or has been silent for too long."""
        loop = asyncio.get_running_loop()
        while wire.usable:
            await asyncio.wait([wire.closed], timeout=SILENCE_MAX_S / 2)
            if not wire.reading:
                continue  # We stopped listening ourselves; silence says nothing.
            silent_s = loop.time() - wire.last_heard
            if silent_s > SILENCE_MAX_S:
                return
            if wire.usable and silent_s > SILENCE_MAX_S / 3:
                wire.send([("PING",)])

    def _take(self, reply: Any) -> None:
        if isinstance(reply, ReplyError):
            # Most often LOADING: give the server a moment and begin anew. A user who may not
            # subscribe is told so each time, and it works as soon as that is mended.
            self._log.warning("subscription_refused", why=str(reply), channels=self._channels)
            if self._wire is not None:
                self._wire.close(str(reply))
            return
        kind = reply[0] if isinstance(reply, list) else None
        if kind == b"message":
            self._messages.append(Message(reply[1], reply[2]))
            self._arrived.set()
            if len(self._messages) >= self._messages_max and self._wire is not None:
                # Bounded here; Redis buffers up to its own limit and then cuts us off: a gap.
                self._wire.pause_reading()
        elif kind == b"subscribe":
            self._confirmed += 1
            if self._confirmed == len(self._channels):
                self._gap = True
                self._before_gap = len(self._messages)
                self._arrived.set()
                self.subscribed.set()
