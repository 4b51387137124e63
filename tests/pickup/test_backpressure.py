"""The gateway holds few bytes for a client that does not read, also over TLS."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from angarium.pickup import client_socket, take_handler
from angarium.pickup.client import CallRefused, PickupClient
from angarium.pickup.gateway import Gateway
from tests.kit.eventually import eventually
from tests.pickup.harness import DID, Inbox, all_done, connected, gateway, sqlite, url_of

LARGE = "x" * 400_000


def small_socket(address: Any) -> socket.socket:
    """A socket with a small receive buffer; the system's default would hold 30 MB."""
    family, kind, protocol, _, _ = address
    small = socket.socket(family, kind, protocol)
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
    return small


@asynccontextmanager
async def unread(service: Gateway) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A socket that reads only in `hear`; aiohttp stops reading after some kilobytes."""
    connector = aiohttp.TCPConnector(socket_factory=small_socket)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.ws_connect(url_of(service), max_msg_size=0, autoping=False) as wire,
    ):
        yield wire


async def say(wire: aiohttp.ClientWebSocketResponse, *calls: tuple[str, Any]) -> None:
    frames = [
        {"jsonrpc": "2.0", "method": method, "params": params, "id": number}
        for number, (method, params) in enumerate(calls)
    ]
    await wire.send_str(json.dumps(frames if len(frames) > 1 else frames[0]))


async def hear(wire: aiohttp.ClientWebSocketResponse) -> Any:
    message = await asyncio.wait_for(wire.receive(), 30)
    assert message.type is aiohttp.WSMsgType.TEXT, message
    return json.loads(message.data)


def charged(service: Gateway) -> tuple[int, int]:
    return service.rpc.answer_budget.used, service.rpc.unanswered.total_bytes


async def test_all_charged_bytes_are_released(redis_url: str, tmp_path: Path) -> None:
    async with gateway(redis_url, sqlite(tmp_path)) as service:
        async with connected(service) as (client, inbox), unread(service) as wire:
            ids = [await client.add_message("c1", [DID], LARGE) for _ in range(12)]
            await client.add_live_session("c2", "s")
            more = [await client.add_message("c2", [DID], LARGE) for _ in range(4)]
            await inbox.has(*more)
            await say(wire, ("takeFromQueue", {"connectionId": "c1", "limit": 8}))
            await eventually(lambda: service.rpc.answer_budget.used > 0, 30)
            taken = await client.take_from_queue("c1")
            assert [each.id for each in taken] == ids[8:]
            await say(wire, ("ping", []), ("nothing", []), ("takeFromQueue", {}), ("rpc.on", []))
            answers = [len((await hear(wire))["result"]), len(await hear(wire))]
            assert answers == [8, 4]
            await eventually(lambda: charged(service) == (0, 0), 30)
            await say(wire, ("takeFromQueue", {"connectionId": "c1", "limit": 8}))
        await eventually(lambda: charged(service) == (0, 0), 30)


async def test_a_batch_deletes_taken_messages_after_its_answer(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path)) as service,
        connected(service) as (client, _),
        unread(service) as wire,
    ):
        ids = [await client.add_message("c1", [DID], number) for number in range(6)]
        params = {"connectionId": "c1", "limit": 2, "deleteMessages": True}
        counting = {"connectionId": "c1", "recipientDid": DID}
        await say(
            wire,
            ("takeFromQueue", params),
            ("getAvailableMessageCount", counting),
            ("takeFromQueue", {**params, "deleteMessages": False}),
            ("getAvailableMessageCount", counting),
        )
        answers = {each["id"]: each["result"] for each in await hear(wire)}
        assert [each["id"] for number in (0, 2) for each in answers[number]] == ids[:4]
        assert (answers[1], answers[3]) == (4, 2), "one call after the other"

        async def deleted() -> bool:
            figures = await service.store.queue_status("default:c1")
            return figures is not None and (figures.pending, figures.sending) == (2, 2)

        await eventually(deleted, 30)


@pytest.mark.limit("pickup_gateway_answer_bytes_max")
async def test_a_take_waits_for_bytes_and_fails_if_none_become_free(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(take_handler, "WAIT_S_MAX", 0.3)
    # The other client uses the budget until then: long enough to be seen on a busy machine.
    monkeypatch.setattr(client_socket, "UNREAD_S_MAX", 15.0)
    limits = {"pickup_gateway_answer_bytes_max": 6_000_000}
    async with (
        gateway(redis_url, sqlite(tmp_path), limits=limits) as service,
        connected(service) as (client, _),
        unread(service) as wire,
    ):
        # More bytes than the operating system buffers for a client that does not read.
        await all_done(*(client.add_message("c1", [DID], LARGE) for _ in range(120)))
        message = await client.add_message("c2", [DID], LARGE)
        for _ in range(20):
            await say(wire, ("takeFromQueue", {"connectionId": "c1"}))

        async def refused() -> bool:
            try:
                found = await client.take_from_queue("c2", limit=1)
            except CallRefused as error:
                return (error.rpc_code, error.reason) == (-32000, "overloaded")
            # It was served before the other client had used the budget: add a message again.
            await client.remove_messages("c2", [each.id for each in found])
            nonlocal message
            message = await client.add_message("c2", [DID], LARGE)
            return False

        await eventually(refused, 30)
        assert service.rpc.answer_budget.used <= 7_000_000
        await eventually(lambda: len(service.rpc.clients) == 1, 60)
        assert [each.id for each in await client.take_from_queue("c2")] == [message]


@asynccontextmanager
async def secured(redis_url: str, tmp_path: Path) -> AsyncIterator[tuple[Gateway, ssl.SSLContext]]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    files: dict[str, Any] = {
        "tls_certificate": tmp_path / "server.pem",
        "tls_key": tmp_path / "server.pem",
    }
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    async with gateway(redis_url, sqlite(tmp_path), **files) as service:
        yield service, context


async def test_large_answers_and_deliveries_work_over_tls(redis_url: str, tmp_path: Path) -> None:
    async with secured(redis_url, tmp_path) as (service, context):
        url, inbox = url_of(service).replace("ws:", "wss:"), Inbox()
        async with PickupClient(url, tls=context, on_messages=inbox) as client:
            ids = [await client.add_message("c1", [DID], LARGE) for _ in range(20)]
            taken = await client.take_from_queue("c1", delete_messages=True)
            assert [each.id for each in taken] == ids
            more = [await client.add_message("c2", [DID], LARGE) for _ in range(20)]
            await client.add_live_session("c2", "s")
            await inbox.has(*more)
            assert inbox.ids == more
            await client.remove_messages("c2", more)

            async def gone() -> bool:
                found = [await client.get_available_message_count(each) for each in ("c1", "c2")]
                return found == [0, 0]

            await eventually(gone, 30)
            await eventually(lambda: charged(service) == (0, 0), 30)


async def test_a_slow_reader_over_tls_receives_every_message(
    redis_url: str, tmp_path: Path
) -> None:
    async with secured(redis_url, tmp_path) as (service, context):
        url = url_of(service).replace("ws:", "wss:")
        async with (
            PickupClient(url, tls=context) as client,
            aiohttp.ClientSession() as session,
            session.ws_connect(url, max_msg_size=0, ssl=context) as wire,
        ):
            await say(wire, ("addLiveSession", {"connectionId": "c1", "sessionId": "s"}))
            assert (await hear(wire))["result"] is True
            ids = [await client.add_message("c1", [DID], LARGE) for _ in range(60)]
            found: list[str] = []
            while len(found) < len(ids):
                found += [each["id"] for each in (await hear(wire))["params"]["messages"]]
            assert found == ids
