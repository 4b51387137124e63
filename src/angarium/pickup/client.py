"""Clients of the gateway: `PickupClient` for asyncio, `SyncPickupClient` for everything else.

A connection that is lost comes back by itself, with the events and the live sessions it had. A
call that was under way then raises `OutcomeUnknown`, because the gateway may have done it; calls
made meanwhile wait for the connection, no longer than their time-out. Messages may come twice
after a loss, and are the caller's to acknowledge with `remove_messages`. A message whose payload
can't be read comes with an `error` among the others, and can be removed like them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
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
# Deliveries that nobody has read yet; beyond them the oldest are dropped, and come again with the
# next session, for nobody acknowledged them.
UNREAD_DELIVERIES_MAX = 100_000


class CallRefused(AngariumError):
    """The gateway answered with an error; `rpc_code` is JSON-RPC's, `reason` our own name of it."""

    code = "call_refused"

    def __init__(self, rpc_code: int, message: str, reason: str | None) -> None:
        super().__init__(message)
        self.rpc_code = rpc_code
        self.reason = reason


class GatewayUnreachable(RedisUnavailable):
    """No connection within the time-out: nothing was sent."""

    code = "gateway_unreachable"


@dataclass(frozen=True)
class PushToken:
    token: str
    type: str = "fcm"


class _Error(msgspec.Struct):
    code: int
    message: str
    data: dict[str, Any] | None = None


class _Said(msgspec.Struct):
    id: int | str | None = None
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: _Error | None = None


_decode_said = msgspec.json.Decoder(_Said).decode


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
    ) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._tls = tls
        self._on_messages = on_messages
        self._timeout_s = call_timeout_s
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._sessions: dict[str, str] = {}
        self._deliveries: asyncio.Queue[Delivery] = asyncio.Queue(UNREAD_DELIVERIES_MAX)
        self._connected = asyncio.Event()
        self._transport: WSTransport | None = None
        self._outbox: list[bytes] = []
        self._keeper: asyncio.Task[None] | None = None
        self._log = log.logger("angarium.pickup.client")
        self.connections = 0  # how often it connected

    async def __aenter__(self) -> Self:
        self._keeper = asyncio.create_task(self._keep())
        try:
            await self._ready()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    # Methods

    async def add_message(
        self,
        connection_id: str,
        recipient_dids: Sequence[str],
        payload: Any,
        push: PushToken | None = None,
    ) -> str:
        """Queue a message; its id."""
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
        """Oldest first; one whose payload can't be read has an `error` and no value."""
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
        """Acknowledge: they are gone for good."""
        await self.call(
            "removeMessages", {"connectionId": connection_id, "messageIds": message_ids}
        )

    async def remove_all_messages(self, connection_id: str, recipient_did: str) -> None:
        params = {"connectionId": connection_id, "recipientDid": recipient_did}
        await self.call("removeAllMessages", params)

    async def add_live_session(self, connection_id: str, session_id: str) -> None:
        """Deliveries come to this client, also after it had to connect again."""
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
        """What live sessions bring, unless `on_messages` takes it."""
        while True:
            yield await self._deliveries.get()

    async def call(self, method: str, params: Any) -> bytes:
        """Any method; its result as JSON."""
        async with asyncio.timeout(self._timeout_s):
            if not self._connected.is_set():
                await self._ready()
            return await self._send(method, params)

    # Inside

    async def _ready(self) -> None:
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

    async def _keep(self) -> None:
        backoff = Backoff(base_s=0.05, ceiling_s=5.0)
        while True:
            try:
                transport, _ = await ws_connect(
                    lambda: _Ear(self),
                    self._url,
                    ssl_context=self._tls,
                    extra_headers=self._headers,
                    enable_auto_ping=True,
                    auto_ping_idle_timeout=PING_S,
                    auto_ping_reply_timeout=PING_S,
                    max_frame_size=64 * 1024 * 1024,
                    # The headers hold the token, and it is for this gateway only.
                    max_redirects=0,
                )
            except (OSError, WSError):
                await asyncio.sleep(backoff.next_delay_s())
                continue
            self._transport = transport
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._introduce()
                backoff.reset()
                await transport.wait_disconnected()
            except (AngariumError, WSError, OSError):
                await asyncio.sleep(backoff.next_delay_s())
            finally:
                self._lost()
                transport.disconnect()

    async def _introduce(self) -> None:
        """Events and sessions, as they were before."""
        await self._send("rpc.on", ["messagesReceived"])
        opening = [
            self._send("addLiveSession", {"connectionId": connection, "sessionId": session})
            for connection, session in self._sessions.items()
        ]
        await asyncio.gather(*opening)
        self.connections += 1
        self._connected.set()

    def _lost(self) -> None:
        self._connected.clear()
        self._transport = None
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(OutcomeUnknown("the connection was lost before the answer"))
                # Whoever gave up waiting is not told again.
                future.exception()

    def disconnected(self, transport: WSTransport) -> None:
        """Whoever waits for an answer is told at once, also the introduction of a connection."""
        if transport is self._transport:
            self._lost()

    def heard(self, data: bytes) -> None:
        """Never raises: the connection must not end because of one frame, or one callback."""
        try:
            said = _decode_said(data)
            if said.method is None:
                self._answered(said)
            elif said.method in ("messagesReceived", "messageReceived"):
                self._delivered(read_delivery(bytes(said.params)))
        except UNREADABLE as error:
            # Without its id nobody can be told; whoever waits for this answer has a time-out.
            self._log.error("frame_unreadable", bytes=len(data), error=repr(error))

    def _answered(self, said: _Said) -> None:
        future = self._waiting.pop(said.id, None) if isinstance(said.id, int) else None
        if future is None or future.done():
            return
        if said.error is None:
            future.set_result(bytes(said.result))
        else:
            details = said.error.data or {}
            text = str(details.get("detail") or said.error.message)
            future.set_exception(CallRefused(said.error.code, text, details.get("code")))

    def _delivered(self, delivery: Delivery) -> None:
        if self._on_messages is not None:
            try:
                self._on_messages(delivery)
            except Exception as error:
                self._log.error("callback_failed", error=repr(error), exc_info=error)
            return
        if self._deliveries.full():
            self._deliveries.get_nowait()
        self._deliveries.put_nowait(delivery)


class _Ear(WSListener):
    def __init__(self, client: PickupClient) -> None:
        super().__init__()
        self._client = client
        self._pieces: list[bytes] = []

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._client.disconnected(transport)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            transport.send_close(frame.get_close_code())
            transport.disconnect()
            return
        if frame.msg_type in (WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION):
            self._pieces.append(frame.get_payload_as_bytes())
            if frame.fin:
                whole = b"".join(self._pieces)
                self._pieces.clear()
                self._client.heard(whole)


class SyncPickupClient:
    """The same for code without a loop: `with SyncPickupClient(url) as client: …`.

    A thread of its own runs the loop; `on_messages` is called from it.
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
        """What live sessions bring; ends when nothing came for `timeout_s`."""

        async def next_one() -> Delivery:
            async with asyncio.timeout(timeout_s):
                return await anext(self._client.deliveries())

        while True:
            try:
                yield self._wait(next_one())
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
