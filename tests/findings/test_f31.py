"""F31: what was stored without an end, and clients that stayed without a reason."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from angarium.pickup import client_socket
from angarium.pickup.expiry import Expiry
from tests.findings.pickup_wire import Wire
from tests.kit.eventually import eventually
from tests.pickup.harness import DID, QUEUE, connected, gateway, harness, sqlite, url_of


async def test_archived_messages_expire_after_their_retention(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        old = await pickup.add_many(2)
        await pickup.clock.advance(1_800)
        young = await pickup.add_many(2)
        await pickup.archive_all()
        expiry = Expiry(pickup.store, pickup.archive, 1_900)
        assert (await expiry.run_once()).removed == 0
        await pickup.clock.advance(100)
        assert (await expiry.run_once()).removed == 2
        assert (await expiry.run_once()).removed == 0, "their rows are still there"
        await pickup.persist()
        assert await pickup.archive.sizes(QUEUE, old) == []
        assert await pickup.take() == young
        assert (await pickup.event_names()).count("expired") == 2


async def test_a_gateway_closes_clients_without_a_call_and_keeps_those_with_a_session(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path), first_call_ms=1_000, idle_ms=2_000) as service,
        aiohttp.ClientSession() as session,
        session.ws_connect(url_of(service)) as mute,
        session.ws_connect(url_of(service)) as idle,
        session.ws_connect(url_of(service)) as live,
    ):
        wires = [Wire(each) for each in (mute, idle, live)]
        assert (await wires[1].ask("ping"))["result"] == "pong"
        params = {"connectionId": "c1", "sessionId": "s1"}
        assert (await wires[2].ask("addLiveSession", params))["result"] is True
        for socket in (mute, idle):
            closed = await asyncio.wait_for(socket.receive(), 30)
            assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1008)
        assert (await wires[2].ask("ping"))["result"] == "pong"
        await eventually(lambda: len(service.rpc.clients) == 1, 30)


async def taken_of(wire: Wire, recipient: str) -> list[dict[str, object]]:
    answer = await wire.ask("takeFromQueue", {"recipient": recipient, "deleteMessages": True})
    found: list[dict[str, object]] = answer["result"]
    return found


async def test_params_by_position_mean_the_same_as_by_name(redis_url: str, tmp_path: Path) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path)) as service,
        aiohttp.ClientSession() as session,
        session.ws_connect(url_of(service)) as socket,
    ):
        wire = Wire(socket)

        async def ask(method: str, *params: object) -> object:
            answer = await wire.ask(method, list(params))
            return answer.get("result", answer.get("error", {}).get("code"))

        did = "did:example:anna"
        first = await ask("addMessage", "c1", [did], {"n": 1}, {"type": "fcm", "token": "t"})
        second = await ask("addMessageToQueue", did, {"n": 2})
        assert isinstance(first, dict)
        assert isinstance(second, dict)
        assert await ask("getAvailableMessageCount", "c1") == 1
        assert await ask("getAvailableMessageCount", "c1", "did:example:bert") == 0
        taken = await ask("takeFromQueue", "c1", did, 10)
        assert isinstance(taken, list)
        assert [each["id"] for each in taken] == [first["messageId"]]
        assert await ask("removeMessages", "c1", [first["messageId"]]) is True
        assert await ask("addLiveModeSession", did) is True
        while not wire.notifications:
            wire.notifications.append(await wire.hear())
        (heard,) = wire.notifications
        assert [each["id"] for each in heard["params"]["messages"]] == [second["messageId"]]
        assert await ask("getLiveSession", did) is True
        assert await ask("removeLiveModeSession", did) is True
        assert await ask("addLiveSession", "c1", "s1") is True
        assert await ask("removeLiveSession", "c1", "s1") is True
        assert await ask("removeAllMessages", did, did) is True
        for params in (({"n": 3}, did), ("hello", did), (did, "hello")):
            assert isinstance(await ask("addMessageToQueue", *params), dict)
        assert [each["encryptedMessage"] for each in await taken_of(wire, did)] == [
            {"n": 3}, "hello",
        ]  # fmt: skip
        (swapped,) = await taken_of(wire, "hello")
        assert swapped["encryptedMessage"] == did, "of two texts the first is the recipient"
        assert await ask("addMessageToQueue", {"n": 4}, {"n": 5}) == -32602
        assert await ask("getLiveSession", "c1", "too", "many") == -32602
        assert await ask("takeFromQueue") == -32602


async def test_a_notification_uri_without_a_token_is_reported_as_ignored(
    redis_url: str, tmp_path: Path
) -> None:
    uri = "http://127.0.0.1:9/send"
    async with (
        gateway(redis_url, sqlite(tmp_path), push_allowed=[uri]) as service,
        aiohttp.ClientSession() as session,
        session.ws_connect(url_of(service)) as socket,
    ):
        params = {"recipient": "did:example:anna", "payload": 1, "notificationUri": uri}
        found = (await Wire(socket).ask("addMessage", params))["result"]
        assert list(found) == ["messageId", "ignored"]
        assert "notificationUri" in found["ignored"][0]


async def test_a_take_in_the_grace_period_waits_for_the_late_acknowledgement(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path), grace_ms=60_000) as service,
        aiohttp.ClientSession() as session,
        session.ws_connect(url_of(service)) as first_socket,
        session.ws_connect(url_of(service)) as second_socket,
    ):
        first, second = Wire(first_socket), Wire(second_socket)
        await first.ask("addLiveSession", {"connectionId": "c1", "sessionId": "s1"})
        sent = await first.add("c1", 1)
        while not first.notifications:
            first.notifications.append(await first.hear())
        await second.ask("addLiveSession", {"connectionId": "c1", "sessionId": "s2"})
        await second.ask("removeLiveSession", {"connectionId": "c1", "sessionId": "s2"})
        newer = await second.add("c1", 2)
        taking = asyncio.ensure_future(second.ask("takeFromQueue", {"connectionId": "c1"}))
        # The take waits: a later call of another client is answered before it.
        assert (await first.ask("getAvailableMessageCount", {"connectionId": "c1"}))["result"] == 1
        assert not taking.done()
        params = {"connectionId": "c1", "messageIds": [sent]}
        assert (await first.ask("removeMessages", params))["result"] is True
        answer = await asyncio.wait_for(taking, 30)
        assert [each["id"] for each in answer["result"]] == [newer]


async def test_a_take_after_the_grace_period_begins_with_the_older_messages(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        old = await pickup.add_many(2)
        assert await pickup.pull(await pickup.open()) == old
        await pickup.open(session="s2", socket="k2")
        newer = await pickup.add_many(2)
        assert await pickup.take() == [], "the first session may still acknowledge"
        await pickup.clock.advance(6)
        assert await pickup.take() == [*old, *newer], "before the sweeper came"


async def test_a_client_that_stops_reading_again_after_it_had_resumed_is_disconnected(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_socket, "UNREAD_S_MAX", 5.0)
    opening = (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    call = b'{"jsonrpc":"2.0","method":"addLiveSession","params":["c1","s1"],"id":1}'
    async with (
        gateway(redis_url, sqlite(tmp_path)) as service,
        connected(service) as (sender, _),
    ):
        port = service.ports["gateway"]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(opening)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x81" + bytes([0x80 | len(call)]) + bytes(4) + call)
        await eventually(lambda: len(service.rpc.sessions) == 1, 30)
        (session,) = service.rpc.sessions
        for turn in range(2):
            for _ in range(30):
                await sender.add_message("c1", [DID], "x" * 400_000)
            await eventually(lambda: session.client.slow, 30)
            while turn == 0 and session.client.slow:
                await reader.read(1024 * 1024)
        await eventually(lambda: not session.client.open, 60)
        writer.close()
