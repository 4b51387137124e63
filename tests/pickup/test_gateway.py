"""The gateway for its clients: every method, the seed's scenario, faults of the known gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from angarium.pickup import access, client_socket
from angarium.pickup.client import CallRefused, PickupClient
from angarium.runtime.errors import SettingInvalid
from angarium.settings import load
from tests.kit.eventually import eventually
from tests.pickup.harness import DID, OTHER_DID, all_done, connected, gateway, sqlite, url_of


class RawSocket:
    """A WebSocket that sends any frame."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def say(self, text: str | bytes | dict[str, Any]) -> None:
        if isinstance(text, bytes):
            await self.socket.send_bytes(text)
        else:
            await self.socket.send_str(text if isinstance(text, str) else json.dumps(text))

    async def hear(self) -> Any:
        message = await asyncio.wait_for(self.socket.receive(), 30)
        assert message.type is aiohttp.WSMsgType.TEXT, message
        return json.loads(message.data)

    async def ask(self, method: str, params: Any = None, call_id: Any = 1) -> Any:
        asked = {"jsonrpc": "2.0", "method": method, "id": call_id}
        if params is not None:
            asked["params"] = params
        await self.say(asked)
        return await self.hear()


@asynccontextmanager
async def raw(url: str, **options: Any) -> AsyncIterator[RawSocket]:
    async with aiohttp.ClientSession() as session, session.ws_connect(url, **options) as socket:
        yield RawSocket(socket)


async def test_every_method_works_under_both_names(any_redis_url: str, tmp_path: Path) -> None:
    async with gateway(any_redis_url, sqlite(tmp_path)) as service, raw(url_of(service)) as one:

        async def result(method: str, **params: Any) -> Any:
            return (await one.ask(method, {"connectionId": "c1", **params}))["result"]

        assert (await one.ask("ping"))["result"] == "pong"
        assert (await one.ask("rpc.on", ["messagesReceived"]))["result"] == {
            "messagesReceived": "ok"
        }
        added = []
        for name in ("addMessage", "addMessageToQueue"):
            found = await result(name, recipientDids=[DID], payload={"n": name})
            assert list(found) == ["messageId"]
            added.append(found["messageId"])
        assert await result("getAvailableMessageCount") == 2
        assert await result("getAvailableMessageCount", recipientDid=OTHER_DID) == 0
        taken = await result("takeFromQueue", limit=1)
        assert [message["id"] for message in taken] == added[:1]
        assert list(taken[0]) == ["id", "receivedAt", "encryptedMessage"]
        assert taken[0]["encryptedMessage"] == {"n": "addMessage"}
        assert taken[0]["receivedAt"].endswith("Z")
        assert await result("removeMessages", messageIds=added[:1]) is True
        assert await result("removeAllMessages", recipientDid=DID) is True
        assert await result("getAvailableMessageCount") == 0
        for opens, closes in (
            ("addLiveSession", "removeLiveSession"),
            ("addLiveModeSession", "removeLiveModeSession"),
        ):
            assert await result("getLiveSession") is False
            assert await result(opens, sessionId="s1") is True
            assert await result("getLiveSession") is True
            assert await result(closes) is True
            assert await result(closes) is False
        assert (await one.ask("rpc.off", ["messagesReceived", "x"]))["result"] == {
            "messagesReceived": "ok",
            "x": "not subscribed",
        }


async def test_a_recipient_may_replace_the_connection(redis_url: str, tmp_path: Path) -> None:
    async with gateway(redis_url, sqlite(tmp_path)) as service, raw(url_of(service)) as one:
        assert (await one.ask("addLiveModeSession", {"recipient": DID}))["result"] is True
        await one.ask("addMessageToQueue", {"recipient": DID, "payload": {"n": 1}})
        note = await one.hear()
        assert note["method"] == "messagesReceived"
        assert note["params"]["connectionId"] == DID
        ids = [message["id"] for message in note["params"]["messages"]]
        removed = await one.ask("removeMessages", {"recipient": DID, "messageIds": ids})
        assert removed["result"] is True
        assert (await one.ask("removeLiveModeSession", {"recipient": DID}))["result"] is True


async def test_a_client_can_request_one_message_per_notification(
    redis_url: str, tmp_path: Path
) -> None:
    async with gateway(redis_url, sqlite(tmp_path)) as service, raw(url_of(service)) as one:
        await one.ask("rpc.on", ["messageReceived"])
        for number in range(2):
            params = {"connectionId": "c1", "recipientDids": [DID], "payload": number}
            await one.ask("addMessage", params)
        await one.ask("addLiveSession", {"connectionId": "c1", "sessionId": "s1"})
        for number in range(2):
            note = await one.hear()
            assert note["method"] == "messageReceived"
            assert note["params"]["message"]["encryptedMessage"] == number


async def test_the_sudden_close_and_open_message_by_message(
    any_redis_url: str, tmp_path: Path
) -> None:
    """The seed's diagram step by step, with three clients and two gateways."""
    database = sqlite(tmp_path)
    async with gateway(any_redis_url, database, grace_ms=60_000) as first:
        prefix = first.runtime.settings.prefix
        async with (
            gateway(any_redis_url, database, prefix=prefix, grace_ms=60_000) as second,
            connected(first) as (client1, inbox1),
            connected(second) as (client2, inbox2),
            connected(second) as (client3, _),
        ):
            # The recipient connects to client 1, which opens a live session.
            await client1.add_live_session("recipient", "s1")
            # The sender gives a message to client 3, at the other gateway.
            message = await client3.add_message("recipient", [DID], {"text": "hello"})
            # The gateway of client 1 delivers it at once.
            await inbox1.has(message)
            # The recipient acknowledges, closes, and connects to client 2 before the
            # acknowledgement has reached a gateway.
            await client2.add_live_session("recipient", "s2")
            taking = asyncio.ensure_future(client2.take_from_queue("recipient"))
            # The late acknowledgement of the old client counts, and the take has waited for it.
            await client1.remove_messages("recipient", [message])
            assert await taking == [], "not sent twice"
            # The late removal of the old session does not end the new one.
            assert await client1.remove_live_session("recipient") is False
            assert await client1.remove_live_session("recipient", "s1") is False
            assert await client2.get_live_session("recipient") is True
            # The next message goes to client 2, and to nobody else.
            following = await client3.add_message("recipient", [DID], {"text": "again"})
            await inbox2.has(following)
            assert inbox2.ids == [following], "an acknowledged message is not sent again"
            assert inbox1.ids == [message]
            await client2.remove_messages("recipient", [following])
            assert await client3.get_available_message_count("recipient") == 0


async def test_without_an_acknowledgement_the_new_session_gets_the_message_after_the_grace_period(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path), grace_ms=100) as service,
        connected(service) as (old, old_inbox),
        connected(service) as (new, new_inbox),
    ):
        await old.add_live_session("c1", "s1")
        message = await old.add_message("c1", [DID], 1)
        await old_inbox.has(message)
        await new.add_live_session("c1", "s2")
        await new_inbox.has(message)
        await new.remove_messages("c1", [message])
        assert await new.get_available_message_count("c1") == 0


async def test_a_live_delivery_contains_all_pending_messages_oldest_first(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path)) as service,
        connected(service) as (client, inbox),
    ):
        ids = [await client.add_message("c1", [DID], number) for number in range(5)]
        await client.add_live_session("c1", "s1")
        await inbox.has(*ids)
        assert inbox.ids == ids
        assert len(inbox.deliveries) == 1


async def test_messages_of_many_senders_reach_sessions_at_other_gateways_in_order(
    any_redis_url: str, tmp_path: Path
) -> None:
    database = sqlite(tmp_path)
    async with gateway(any_redis_url, database) as first:
        prefix = first.runtime.settings.prefix
        async with (
            gateway(any_redis_url, database, prefix=prefix) as second,
            connected(first) as (reader, inbox),
            connected(second) as (writer, _),
        ):
            queues = [f"c{number}" for number in range(20)]
            await all_done(*(reader.add_live_session(each, "s") for each in queues))
            sent: dict[str, list[str]] = {each: [] for each in queues}

            async def write(queue: str) -> None:
                for number in range(30):
                    sent[queue].append(await writer.add_message(queue, [DID], number))

            await all_done(*map(write, queues))
            await inbox.has(*(each for ids in sent.values() for each in ids))
            for queue in queues:
                got = [
                    message.id
                    for each in inbox.deliveries
                    if each.connection_id == queue
                    for message in each.messages
                ]
                assert got == sent[queue]


async def test_the_database_is_part_of_the_queue(redis_url: str, tmp_path: Path) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path), threshold_timestamp=50) as service,
        connected(service) as (client, inbox),
    ):
        ids = [await client.add_message("c1", [DID], number) for number in range(30)]

        async def archived() -> bool:
            figures = await service.store.queue_status("default:c1")
            return figures is not None and figures.archived == 30

        await eventually(archived, 30)
        assert await client.get_available_message_count("c1") == 30
        assert await client.get_available_message_count("c1", DID) == 30
        taken = await client.take_from_queue("c1", limit=10, recipient_did=DID)
        assert [each.id for each in taken] == ids[:10]
        assert await client.get_available_message_count("c1", DID) == 20
        await client.remove_messages("c1", ids[:10])
        late = await client.add_message("c1", [DID], "late")
        await client.add_live_session("c1", "s1")
        await inbox.has(late)
        assert inbox.ids == [*ids[10:], late]
        await client.remove_messages("c1", inbox.ids)
        assert await client.get_available_message_count("c1") == 0
        assert await service.store.queue_status("default:c1") is not None, "its session is open"


# Faults of the known implementation


async def test_messages_after_the_24th_are_removed_too(redis_url: str, tmp_path: Path) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path)) as service,
        connected(service) as (client, _),
    ):
        ids = [await client.add_message("c1", [DID], number) for number in range(60)]
        await client.remove_messages("c1", ids[30:])
        assert await client.get_available_message_count("c1") == 30
        assert [each.id for each in await client.take_from_queue("c1")] == ids[:30]


@pytest.mark.parametrize("limit", [None, 0, 1, 7, 100])
async def test_a_take_returns_its_limit_or_everything_without_a_limit(
    limit: int | None, redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path)) as service,
        connected(service) as (client, _),
    ):
        for number in range(20):
            await client.add_message("c1", [DID], number)
        taken = await client.take_from_queue("c1", limit=limit)
        assert len(taken) == (20 if limit is None else min(limit, 20))


async def test_a_take_with_delete_removes_only_messages_of_its_recipient(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path), sending_ms=1) as service,
        connected(service) as (client, _),
    ):
        mine = await client.add_message("c1", [DID], 1)
        other = await client.add_message("c1", [OTHER_DID], 2)
        taken = await client.take_from_queue("c1", recipient_did=DID, delete_messages=True)
        assert [each.id for each in taken] == [mine]

        async def only_the_other() -> bool:
            figures = await service.store.queue_status("default:c1")
            return figures is not None and figures.pending == 1 and figures.sending == 0

        await eventually(only_the_other, 30)
        assert [each.id for each in await client.take_from_queue("c1")] == [other]


async def test_a_query_by_recipient_returns_no_messages_of_other_connections(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path), threshold_timestamp=20) as service,
        connected(service) as (client, _),
    ):
        await client.add_message("c1", [DID], "secret")

        async def archived() -> bool:
            figures = await service.store.queue_status("default:c1")
            return figures is not None and figures.archived == 1

        await eventually(archived, 30)
        assert await client.take_from_queue("c2", recipient_did=DID) == []
        assert await client.get_available_message_count("c2", DID) == 0


async def test_two_clients_never_take_the_same_message(redis_url: str, tmp_path: Path) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path)) as service,
        connected(service) as (one, _),
        connected(service) as (two, _),
    ):
        await all_done(*(one.add_message("c1", [DID], number) for number in range(200)))
        takes = [client.take_from_queue("c1", limit=7) for _ in range(20) for client in (one, two)]
        ids = [each.id for taken in await all_done(*takes) for each in taken]
        assert len(ids) == len(set(ids)) == 200


async def test_a_dead_socket_ends_its_session(redis_url: str, tmp_path: Path) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path), ping_ms=200) as service,
        connected(service) as (client, _),
        raw(url_of(service), autoping=False) as silent,
    ):
        await silent.ask("addLiveSession", {"connectionId": "c1", "sessionId": "s1"})
        assert await client.get_live_session("c1")

        # The socket does not answer pings, like a cut cable.
        async def offline() -> bool:
            return not await client.get_live_session("c1")

        await eventually(offline, 30)


# Bad input


async def test_bad_frames_are_answered_and_the_connection_stays_open(
    redis_url: str, tmp_path: Path
) -> None:
    async with gateway(redis_url, sqlite(tmp_path)) as service, raw(url_of(service)) as one:
        cases: list[tuple[str | bytes, int]] = [
            ("{", -32700),
            (b"\xff\xfe{", -32700),
            ("[]", -32600),
            ('{"jsonrpc":"2.0","id":1}', -32600),
            ('{"jsonrpc":"2.0","method":"nothing","id":1}', -32601),
            ('{"jsonrpc":"2.0","method":"takeFromQueue","id":1}', -32602),
            ('{"jsonrpc":"2.0","method":"takeFromQueue","params":[1],"id":1}', -32602),
            ('{"jsonrpc":"2.0","method":"rpc.on","params":{},"id":1}', -32602),
            (
                '{"jsonrpc":"2.0","method":"removeMessages","params":{"connectionId":"c"},"id":1}',
                -32602,
            ),
        ]
        for text, code in cases:
            await one.say(text)
            assert (await one.hear())["error"]["code"] == code, text
        assert (await one.ask("ping"))["result"] == "pong"


async def test_batches_and_notifications_follow_the_specification(
    redis_url: str, tmp_path: Path
) -> None:
    async with gateway(redis_url, sqlite(tmp_path)) as service, raw(url_of(service)) as one:
        add = {"connectionId": "c1", "recipientDids": [DID], "payload": 1}
        batch = [
            {"jsonrpc": "2.0", "method": "ping", "id": "a"},
            {"jsonrpc": "2.0", "method": "addMessage", "params": add},
            {"jsonrpc": "2.0", "method": "addMessage", "params": add, "id": 2},
            {"jsonrpc": "2.0", "method": "nothing"},
            7,
        ]
        await one.say(json.dumps(batch))
        answers = {str(each["id"]): each for each in await one.hear()}
        assert set(answers) == {"a", "2", "None"}
        assert answers["a"]["result"] == "pong"
        assert answers["None"]["error"]["code"] == -32600
        await one.say(json.dumps([{"jsonrpc": "2.0", "method": "addMessage", "params": add}]))
        await one.say({"jsonrpc": "2.0", "method": "nothing"})

        async def all_there() -> bool:
            found = await one.ask("getAvailableMessageCount", {"connectionId": "c1"})
            return bool(found["result"] == 3)

        await eventually(all_there, 30)


async def test_an_oversized_frame_closes_with_1009(redis_url: str, tmp_path: Path) -> None:
    async with gateway(redis_url, sqlite(tmp_path)) as service:
        async with raw(url_of(service)) as one:
            await one.say("x" * (1024 * 1024 + 1))
            message = await asyncio.wait_for(one.socket.receive(), 30)
            assert message.type is aiohttp.WSMsgType.CLOSE
            assert message.data == 1009
        async with connected(service) as (client, _):
            assert await client.ping() == "pong"


async def test_a_message_in_several_frames_counts_as_one(redis_url: str, tmp_path: Path) -> None:
    async with gateway(redis_url, sqlite(tmp_path)) as service:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.ports["gateway"])
        writer.write(
            b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")

        def frame(head: int, data: bytes) -> bytes:
            size = len(data)
            length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
            return bytes([head]) + length + bytes(4) + data

        call = b'{"jsonrpc":"2.0","method":"ping","id":1}'
        writer.write(frame(0x01, call[:10]) + frame(0x00, call[10:20]) + frame(0x80, call[20:]))
        assert b'"pong"' in await reader.read(200)
        part = b"x" * 60_000
        writer.write(frame(0x01, part))
        for _ in range(20):
            writer.write(frame(0x00, part))
        answer = await asyncio.wait_for(reader.read(200), 30)
        assert (1009).to_bytes(2, "big") in answer
        writer.close()


@pytest.mark.parametrize("heads", [(0x00,), (0x80,), (0x01, 0x01), (0x01, 0x81)])
async def test_frames_that_belong_to_no_message_close_with_1002(
    redis_url: str, tmp_path: Path, heads: tuple[int, ...]
) -> None:
    async with gateway(redis_url, sqlite(tmp_path)) as service:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.ports["gateway"])
        writer.write(
            b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        for each in heads:
            writer.write(bytes([each, 0x82]) + bytes(4) + b"{}")
        answer = await asyncio.wait_for(reader.read(200), 30)
        assert answer[:4] == b"\x88\x02" + (1002).to_bytes(2, "big")
        writer.close()


async def test_other_paths_and_plain_http_are_refused(redis_url: str, tmp_path: Path) -> None:
    async with gateway(redis_url, sqlite(tmp_path)) as service:
        url = url_of(service)
        with pytest.raises(aiohttp.WSServerHandshakeError) as error:
            async with raw(f"{url}elsewhere"):
                pass
        assert error.value.status == 404
        plain = url.replace("ws:", "http:")
        async with aiohttp.ClientSession() as session, session.get(plain) as answer:
            assert answer.status >= 400


@pytest.mark.limit("pickup_client_buffer_bytes_max")
async def test_a_client_that_does_not_read_is_disconnected_and_others_are_served(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_socket, "UNREAD_S_MAX", 0.5)
    limits = {"pickup_client_buffer_bytes_max": 4_000_000}
    async with (
        gateway(redis_url, sqlite(tmp_path), limits=limits) as service,
        connected(service) as (client, inbox),
    ):
        deaf_reader, deaf = await asyncio.open_connection(
            "127.0.0.1", service.ports["gateway"], limit=1024
        )
        deaf.write(
            b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        await deaf_reader.readuntil(b"\r\n\r\n")
        await eventually(lambda: len(service.rpc.clients) == 2, 30)
        asking = b'{"jsonrpc":"2.0","method":"takeFromQueue","params":{"connectionId":"c1"},"id":1}'
        masked = b"\x81" + bytes([0x80 | len(asking)]) + bytes(4) + asking
        for _ in range(40):
            await client.add_message("c1", [DID], "x" * 400_000)
        await client.add_live_session("c2", "s2")
        for _ in range(40):
            deaf.write(masked)
        await eventually(lambda: len(service.rpc.clients) == 1, 30)
        message = await client.add_message("c2", [DID], 1)
        await inbox.has(message)
        deaf.close()


async def test_each_limit_has_its_own_error(redis_url: str, tmp_path: Path) -> None:
    limits = {
        "pickup_client_sessions_max": 1,
        "pickup_message_bytes_max": 10,
        "pickup_queue_messages_max": 1,
        "pickup_client_calls_max": 8,
    }
    async with (
        gateway(redis_url, sqlite(tmp_path), limits=limits) as service,
        connected(service) as (client, _),
    ):

        async def reason(call: Any) -> str | None:
            with pytest.raises(CallRefused) as error:
                await call
            return error.value.reason

        await client.add_live_session("c1", "s1")
        assert await reason(client.add_live_session("c2", "s1")) == "sessions_exceeded"
        assert await reason(client.add_message("c1", [DID], "x" * 11)) == "limit_exceeded"
        await client.add_message("c3", [DID], 1)
        assert await reason(client.add_message("c3", [DID], 1)) == "queue_full"
        calls = await asyncio.gather(*(client.ping() for _ in range(60)), return_exceptions=True)
        refused = [each for each in calls if isinstance(each, CallRefused)]
        assert refused
        assert {each.reason for each in refused} == {"rate_exceeded"}


# Access


async def test_tenants_do_not_see_each_others_connections(redis_url: str, tmp_path: Path) -> None:
    tokens = ["north:secret-n", "south:secret-s"]
    async with gateway(redis_url, sqlite(tmp_path), tokens=tokens) as service:
        for options in ({}, {"headers": {"Authorization": "Bearer wrong"}}):
            with pytest.raises(aiohttp.WSServerHandshakeError) as error:
                async with raw(url_of(service), **options):
                    pass
            assert error.value.status == 401
        async with (
            connected(service, token="secret-n") as (north, inbox),
            connected(service, token="secret-s") as (south, _),
        ):
            await north.add_live_session("c1", "s1")
            message = await north.add_message("c1", [DID], "north's")
            await inbox.has(message)
            assert await south.get_live_session("c1") is False
            assert await south.take_from_queue("c1", recipient_did=DID) == []
            await south.remove_messages("c1", [message])
            await south.remove_all_messages("c1", DID)
            assert await south.remove_live_session("c1", "s1") is False
            assert await north.get_live_session("c1") is True
            figures = await service.store.queue_status("north:c1")
            assert figures is not None
            assert figures.sending == 1


def test_a_gateway_for_everybody_needs_an_explicit_setting() -> None:
    with pytest.raises(SettingInvalid, match="for everybody"):
        access.check(load(pickup={"host": "0.0.0.0"}).pickup)
    access.check(load(pickup={"host": "0.0.0.0", "anonymous": True}).pickup)
    access.check(load(pickup={"host": "0.0.0.0", "tokens": ["a:b"]}).pickup)
    with pytest.raises(SettingInvalid, match="tenant:token") as error:
        access.GatewayAccess(load(pickup={"tokens": ["nonsense-secret"]}).pickup)
    assert "nonsense-secret" not in str(error.value)


async def test_a_client_certificate_names_the_tenant(redis_url: str, tmp_path: Path) -> None:
    import ssl

    import trustme

    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server = authority.issue_cert("127.0.0.1")
    server.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    client_side = authority.issue_cert("client.example", common_name="north")
    client_side.private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
    options: dict[str, Any] = {
        "tls_certificate": tmp_path / "server.pem",
        "tls_key": tmp_path / "server.pem",
        "tls_client_ca": tmp_path / "ca.pem",
    }
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    context.load_cert_chain(tmp_path / "client.pem")
    async with gateway(redis_url, sqlite(tmp_path), **options) as service:
        url = url_of(service).replace("ws:", "wss:")
        async with PickupClient(url, tls=context) as client:
            await client.add_message("c1", [DID], 1)
            assert await service.store.queue_status("north:c1") is not None
        stranger = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        with pytest.raises((aiohttp.ClientError, OSError)):
            async with raw(url, ssl=stranger) as one:
                await one.ask("ping")
