"""Pub/Sub that comes back by itself, and says when something may have been missed.

Pub/Sub keeps nothing: what was published while no connection stood is gone. So each batch
tells whether it is the first after a (re)connection (`gap`), and whoever needs certainty reads
the truth from Redis then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from angarium.redis.backoff import Backoff
from angarium.redis.connection import Connection, ReplyError
from angarium.redis.errors import OutcomeUnknown, RedisUnavailable

log = logging.getLogger("angarium.redis")

# A connection on which nothing was heard for this long, not even the answer to a PING sent
# half-way, is dead though the kernel does not know it yet.
SILENCE_MAX_S = 10.0


class ChannelMessage(NamedTuple):
    channel: bytes
    payload: bytes


@dataclass(frozen=True)
class ChannelBatch:
    """What arrived since the last look. `gap`: something may have been missed.

    It was missed behind the first `before_gap` messages and in front of the others.
    """

    messages: list[ChannelMessage]
    gap: bool
    before_gap: int = 0


class Subscription:
    """`async with redis.subscribe("a") as subscription: batch = await subscription.receive()`."""

    def __init__(
        self,
        open_subscriber: Callable[[Callable[[Any], None]], Awaitable[Connection]],
        channels: Sequence[str],
        messages_max: int,
        bytes_max: int,
    ) -> None:
        self._open = open_subscriber
        self._channels = tuple(channels)
        self._names = frozenset(channel.encode() for channel in channels)
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._bytes = 0  # of the waiting messages
        self._messages: list[ChannelMessage] = []
        self._gap = False
        self._before_gap = 0
        self._arrived = asyncio.Event()
        self._confirmed = 0
        self._connection: Connection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self.subscribed = asyncio.Event()

    async def receive(self) -> ChannelBatch:
        """Everything that is waiting; waits for the first. Never empty unless `gap`."""
        await self._arrived.wait()
        self._arrived.clear()
        messages, self._messages = self._messages, []
        self._bytes = 0
        gap, self._gap = self._gap, False
        if self._connection is not None:
            self._connection.resume_reading()
        before_gap, self._before_gap = self._before_gap, 0
        return ChannelBatch(messages, gap, before_gap)

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
                self._connection = await self._open(self._take)
            except (RedisUnavailable, OutcomeUnknown):
                await asyncio.sleep(backoff.next_delay_s())
                continue
            try:
                self._confirmed = 0
                self._connection.send([("SUBSCRIBE", *self._channels)])
                await self._listen(self._connection)
            finally:
                if self.subscribed.is_set():
                    backoff.reset()
                self.subscribed.clear()
                self._connection.close()
            await asyncio.sleep(backoff.next_delay_s())

    async def _listen(self, connection: Connection) -> None:
        """Until the connection is lost or has been silent for too long."""
        loop = asyncio.get_running_loop()
        while connection.usable:
            await asyncio.wait([connection.closed], timeout=SILENCE_MAX_S / 2)
            if not connection.reading:
                continue  # We stopped listening ourselves; silence says nothing.
            silent_s = loop.time() - connection.last_heard
            if silent_s > SILENCE_MAX_S:
                return
            if connection.usable and silent_s > SILENCE_MAX_S / 3:
                connection.send([("PING",)])

    def _take(self, reply: Any) -> None:
        kind = reply[0] if type(reply) is list else b""
        if kind == b"message":
            _, channel, payload = reply
            if channel not in self._names:
                raise ValueError("a message of a channel that nobody subscribed to")
            messages = self._messages
            if not messages:
                self._arrived.set()
            messages.append(ChannelMessage(channel, payload))
            self._bytes += len(payload)
            full = len(messages) >= self._messages_max or self._bytes >= self._bytes_max
            if full and self._connection is not None:
                # Bounded here; Redis buffers up to its own limit and then cuts us off: a gap.
                self._connection.pause_reading()
        elif isinstance(reply, ReplyError):
            # Most often LOADING: give the server a moment and begin anew. A user who may not
            # subscribe is told so each time, and it works as soon as that is mended.
            log.warning(
                "subscription_refused", extra={"why": str(reply), "channels": self._channels}
            )
            if self._connection is not None:
                self._connection.close(str(reply))
        elif kind == b"subscribe":
            self._confirmed += 1
            if self._confirmed == len(self._channels):
                self._gap = True
                self._before_gap = len(self._messages)
                self._arrived.set()
                self.subscribed.set()
        elif kind != b"pong":
            raise ValueError("a push of a kind that nobody asked for")
