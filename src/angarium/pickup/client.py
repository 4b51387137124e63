"""Clients of the gateway: `PickupClient` for asyncio, `SyncPickupClient` for everything else.

After a lost connection a client connects again and restores its events and live sessions. A call
that was under way raises `OutcomeUnknown`, because the gateway may have executed it. New calls wait
for the connection until their time-out. The caller acknowledges messages with `remove_messages`;
after a lost connection a message may arrive twice. A message whose payload can't be read has an
`error`; the caller can remove it like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Self, TypeVar

import msgspec
from picows import WSError, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from angarium.pickup.client_messages import (
    UNREADABLE,
    Delivery,
    QueuedMessage,
    read_delivery,
    read_page,
)
from angarium.pickup.limits import PickupLimits
from angarium.pickup.model import PushToken
from angarium.redis.backoff import Backoff
from angarium.runtime import log
from angarium.runtime.errors import AngariumError, OutcomeUnknown, RedisUnavailable

__all__ = [
    "CallRefused",
    "Delivery",
    "GatewayUnreachable",
    "PickupClient",
    "PushToken",
    "QueuedMessage",
    "SyncPickupClient",
]
T = TypeVar("T")
CALL_TIMEOUT_S = 30.0
PING_S = 20.0


class CallRefused(AngariumError):
    """The gateway answered with an error: `rpc_code` is of JSON-RPC, `reason` is our name of it."""

    code = "call_refused"

    def __init__(self, rpc_code: int, message: str, reason: str | None) -> None:
        super().__init__(message)
        self.rpc_code = rpc_code
        self.reason = reason


class GatewayUnreachable(RedisUnavailable):
    """There was no connection within the time-out; nothing was sent."""

    code = "gateway_unreachable"


class _RpcError(msgspec.Struct):
    code: int
    message: str
    data: dict[str, Any] | None = None


class _IncomingFrame(msgspec.Struct):
    id: int | str | None = None
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: _RpcError | None = None


_decode_frame = msgspec.json.Decoder(_IncomingFrame).decode


class PickupClient:
    """`async with PickupClient("ws://127.0.0.1:3100/") as client: …`"""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        on_messages: Callable[[Delivery], None] | None = None,
        call_timeout_s: float = CALL_TIMEOUT_S,
        limits: PickupLimits | None = None,
    ) -> None:
        self._url = url
        self._limits = limits or PickupLimits()
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._tls = tls
        self._on_messages = on_messages
        self._timeout_s = call_timeout_s
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._sessions: dict[str, str] = {}
        self._deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        self._unread_bytes = 0
        self.dropped = 0  # deliveries that the program did not read in time
        self._connected = asyncio.Event()
        self._transport: WSTransport | None = None
        self._connection_task: asyncio.Task[None] | None = None
        self._log = log.logger("angarium.pickup.client")
        self.connections = 0  # number of successful connects

    async def __aenter__(self) -> Self:
        self._connection_task = asyncio.create_task(self._stay_connected())
        try:
            await self._wait_connected()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._connection_task is not None:
            self._connection_task.cancel()
            await asyncio.gather(self._connection_task, return_exceptions=True)

    # Methods

    async def add_message(
        self,
        connection_id: str,
        recipient_dids: Sequence[str],
        payload: Any,
        push: PushToken | None = None,
    ) -> str:
        """Queue a message; returns its id."""
        params: dict[str, Any] = {
            "connectionId": connection_id,
            "recipientDids": recipient_dids,
            "payload": payload,
        }
        if push is not None:
            params["pushNotificationToken"] = {"type": push.type, "token": push.token}
        found = msgspec.json.decode(await self.call("addMessage", params), type=dict[str, str])
        return found["messageId"]

    async def take_from_queue(
        self,
        connection_id: str,
        *,
        recipient_did: str | None = None,
        limit: int | None = None,
        limit_bytes: int | None = None,
        delete_messages: bool = False,
    ) -> list[QueuedMessage]:
        """Oldest first. A message whose payload can't be read has an `error` and no value."""
        params = {
            "connectionId": connection_id,
            "recipientDid": recipient_did,
            "limit": limit,
            "limitBytes": limit_bytes,
            "deleteMessages": delete_messages,
        }
        given = {name: value for name, value in params.items() if value is not None}
        return read_page(await self.call("takeFromQueue", given))

    async def get_available_message_count(
        self, connection_id: str, recipient_did: str | None = None
    ) -> int:
        params = {"connectionId": connection_id}
        if recipient_did is not None:
            params["recipientDid"] = recipient_did
        return msgspec.json.decode(await self.call("getAvailableMessageCount", params), type=int)

    async def remove_messages(self, connection_id: str, message_ids: Sequence[str]) -> None:
        """Acknowledge the messages: they are removed from the queue."""
        await self.call(
            "removeMessages", {"connectionId": connection_id, "messageIds": message_ids}
        )

    async def remove_all_messages(self, connection_id: str, recipient_did: str) -> None:
        params = {"connectionId": connection_id, "recipientDid": recipient_did}
        await self.call("removeAllMessages", params)

    async def add_live_session(self, connection_id: str, session_id: str) -> None:
        """This client gets the deliveries, also after it has connected again."""
        params = {"connectionId": connection_id, "sessionId": session_id}
        await self.call("addLiveSession", params)
        self._sessions[connection_id] = session_id

    async def remove_live_session(self, connection_id: str, session_id: str | None = None) -> bool:
        if session_id in (None, self._sessions.get(connection_id)):
            self._sessions.pop(connection_id, None)
        params = {"connectionId": connection_id}
        if session_id is not None:
            params["sessionId"] = session_id
        return msgspec.json.decode(await self.call("removeLiveSession", params), type=bool)

    async def get_live_session(self, connection_id: str) -> bool:
        params = {"connectionId": connection_id}
        return msgspec.json.decode(await self.call("getLiveSession", params), type=bool)

    async def ping(self) -> str:
        return msgspec.json.decode(await self.call("ping", None), type=str)

    async def deliveries(self) -> AsyncIterator[Delivery]:
        """Deliveries of all live sessions; nothing if `on_messages` is set."""
        while True:
            delivery = await self._deliveries.get()
            self._unread_bytes -= _bytes_of(delivery)
            yield delivery

    async def call(self, method: str, params: Any) -> bytes:
        """Call any method; returns the result as JSON."""
        async with asyncio.timeout(self._timeout_s):
            if not self._connected.is_set():
                await self._wait_connected()
            return await self._send(method, params)

    def reconnect(self) -> None:
        """Abort the connection and connect again, for example after a change of network."""
        if self._transport is not None:
            self._transport.underlying_transport.abort()

    # The connection

    async def _wait_connected(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._connected.wait()
        except TimeoutError:
            raise GatewayUnreachable(f"no connection to {self._url}") from None

    def _send(self, method: str, params: Any) -> asyncio.Future[bytes]:
        number = next(self._numbers)
        call = {"jsonrpc": "2.0", "method": method, "id": number}
        if params is not None:
            call["params"] = params
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._transport is None:
            raise GatewayUnreachable(f"no connection to {self._url}")
        self._waiting[number] = future
        self._transport.send(WSMsgType.TEXT, msgspec.json.encode(call))
        return future

    async def _stay_connected(self) -> None:
        backoff = Backoff(base_s=0.05, ceiling_s=5.0)
        while True:
            try:
                transport, _ = await ws_connect(
                    lambda: _FrameListener(self),
                    self._url,
                    ssl_context=self._tls,
                    extra_headers=self._headers,
                    enable_auto_ping=True,
                    auto_ping_idle_timeout=PING_S,
                    auto_ping_reply_timeout=PING_S,
                    max_frame_size=64 * 1024 * 1024,
                    # A redirect would send the token to another server.
                    max_redirects=0,
                )
            except (OSError, WSError):
                await asyncio.sleep(backoff.next_delay_s())
                continue
            self._transport = transport
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._restore_sessions()
                backoff.reset()
                await transport.wait_disconnected()
            except (AngariumError, WSError, OSError):
                await asyncio.sleep(backoff.next_delay_s())
            finally:
                self._connection_lost()
                transport.disconnect()

    async def _restore_sessions(self) -> None:
        await self._send("rpc.on", ["messagesReceived"])
        opening = [
            self._send("addLiveSession", {"connectionId": connection, "sessionId": session})
            for connection, session in self._sessions.items()
        ]
        await asyncio.gather(*opening)
        self.connections += 1
        self._connected.set()

    def _connection_lost(self) -> None:
        self._connected.clear()
        self._transport = None
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(OutcomeUnknown("the connection was lost before the answer"))
                # Marks the exception as retrieved: a caller that gave up does not await it.
                future.exception()

    def disconnected(self, transport: WSTransport) -> None:
        """Fail all waiting calls at once, also those of `_restore_sessions`."""
        if transport is self._transport:
            self._connection_lost()

    def frame_received(self, data: bytes) -> None:
        """Never raises: one bad frame or one failed callback does not end the connection."""
        try:
            frame = _decode_frame(data)
            if frame.method is None:
                self._answered(frame)
            elif frame.method in ("messagesReceived", "messageReceived"):
                self._delivered(read_delivery(bytes(frame.params)))
        except UNREADABLE as error:
            # The id of the call is unknown, so the call ends by its time-out.
            self._log.error("frame_unreadable", bytes=len(data), error=repr(error))

    def _answered(self, frame: _IncomingFrame) -> None:
        future = self._waiting.pop(frame.id, None) if isinstance(frame.id, int) else None
        if future is None or future.done():
            return
        if frame.error is None:
            future.set_result(bytes(frame.result))
        else:
            details = frame.error.data or {}
            text = str(details.get("detail") or frame.error.message)
            future.set_exception(CallRefused(frame.error.code, text, details.get("code")))

    def _delivered(self, delivery: Delivery) -> None:
        if self._on_messages is not None:
            try:
                self._on_messages(delivery)
            except Exception as error:
                self._log.error("callback_failed", error=repr(error), exc_info=error)
            return
        self._deliveries.put_nowait(delivery)
        self._unread_bytes += _bytes_of(delivery)
        while self._too_many_unread():
            self._unread_bytes -= _bytes_of(self._deliveries.get_nowait())
            self.dropped += 1

    def _too_many_unread(self) -> bool:
        count = self._deliveries.qsize()
        return count > self._limits.pickup_unread_deliveries_max or (
            count > 1 and self._unread_bytes > self._limits.pickup_unread_bytes_max
        )


def _bytes_of(delivery: Delivery) -> int:
    return sum(len(each.raw) for each in delivery.messages)


class _FrameListener(WSListener):
    def __init__(self, client: PickupClient) -> None:
        super().__init__()
        self._client = client
        self._fragments: list[bytes] = []

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._client.disconnected(transport)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            transport.send_close(frame.get_close_code())
            transport.disconnect()
            return
        if frame.msg_type in (WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION):
            self._fragments.append(frame.get_payload_as_bytes())
            if frame.fin:
                message = b"".join(self._fragments)
                self._fragments.clear()
                self._client.frame_received(message)


class SyncPickupClient:
    """For code without an event loop: `with SyncPickupClient(url) as client: …`.

    A separate thread runs the loop and calls `on_messages`.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._url = url
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._client: PickupClient

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._client = self._wait(self._open())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(AngariumError):
            self._wait(self._client.__aexit__())
        self._end()

    def add_message(self, *args: Any, **options: Any) -> str:
        return self._wait(self._client.add_message(*args, **options))

    def take_from_queue(self, connection_id: str, **options: Any) -> list[QueuedMessage]:
        return self._wait(self._client.take_from_queue(connection_id, **options))

    def get_available_message_count(
        self, connection_id: str, recipient_did: str | None = None
    ) -> int:
        return self._wait(self._client.get_available_message_count(connection_id, recipient_did))

    def remove_messages(self, connection_id: str, message_ids: Sequence[str]) -> None:
        self._wait(self._client.remove_messages(connection_id, message_ids))

    def remove_all_messages(self, connection_id: str, recipient_did: str) -> None:
        self._wait(self._client.remove_all_messages(connection_id, recipient_did))

    def add_live_session(self, connection_id: str, session_id: str) -> None:
        self._wait(self._client.add_live_session(connection_id, session_id))

    def remove_live_session(self, connection_id: str, session_id: str | None = None) -> bool:
        return self._wait(self._client.remove_live_session(connection_id, session_id))

    def get_live_session(self, connection_id: str) -> bool:
        return self._wait(self._client.get_live_session(connection_id))

    def ping(self) -> str:
        return self._wait(self._client.ping())

    def deliveries(self, timeout_s: float | None = None) -> Iterator[Delivery]:
        """Deliveries of all live sessions; ends when none arrives within `timeout_s`."""

        async def next_delivery() -> Delivery:
            async with asyncio.timeout(timeout_s):
                return await anext(self._client.deliveries())

        while True:
            try:
                yield self._wait(next_delivery())
            except TimeoutError:
                return

    async def _open(self) -> PickupClient:
        return await PickupClient(self._url, **self._options).__aenter__()

    def _wait(self, run: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(run, self._loop).result()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
