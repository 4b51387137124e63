"""Sends `messagesReceived` notifications to the clients of live sessions.

Messages that arrive for a session in one iteration of the loop leave together.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import msgspec

from angarium.pickup.jsonrpc import notification
from angarium.pickup.live_session import LiveSession
from angarium.pickup.model import StoredMessage, connection_of, encode_message
from angarium.pickup.store import PULL_BYTES_MAX, PULL_MESSAGES_MAX
from angarium.runtime.tracing import Tracing


class DeliveryNotifier:
    def __init__(self, tracing: Tracing | None) -> None:
        self._tracing = tracing
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._ready: list[LiveSession] = []
        self.delivered = 0

    def deliver(self, session: LiveSession, messages: list[StoredMessage]) -> None:
        self.delivered += len(messages)
        if not session.to_notify:
            if not self._ready:
                self._loop.call_soon(self._notify_all)
            self._ready.append(session)
        session.to_notify += messages

    def _notify_all(self) -> None:
        ready, self._ready = self._ready, []
        for session in ready:
            messages, session.to_notify = session.to_notify, []
            for some in _chunks(messages):
                self._notify(session, some)

    def _notify(self, session: LiveSession, messages: list[StoredMessage]) -> None:
        client = session.client
        connection = msgspec.json.encode(connection_of(session.queue))
        number = next(self._numbers)
        encoded = [encode_message(each) for each in messages]
        if self._tracing is not None:
            self._tracing.follow([each.id for each in messages], "pickup send", kind="producer")
        if "messageReceived" in client.events and "messagesReceived" not in client.events:
            for each in encoded:
                params = b'{"connectionId":%b,"message":%b,"id":"%d"}' % (connection, each, number)
                client.send(notification("messageReceived", params))
            return
        params = b'{"connectionId":%b,"messages":[%b],"id":"%d"}' % (
            connection,
            b",".join(encoded),
            number,
        )
        client.send(notification("messagesReceived", params))


def _chunks(messages: list[StoredMessage]) -> Iterator[list[StoredMessage]]:
    """The messages of one notification each."""
    chunk: list[StoredMessage] = []
    size = 0
    for each in messages:
        size += len(each.payload)
        if chunk and (size > PULL_BYTES_MAX or len(chunk) == PULL_MESSAGES_MAX):
            yield chunk
            chunk, size = [], len(each.payload)
        chunk.append(each)
    if chunk:
        yield chunk
