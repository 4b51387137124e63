"""Live sessions with concurrent calls: restored, closed at another gateway, opened twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from angarium.pickup.gateway import Gateway
from angarium.pickup.live_session import LiveSession
from angarium.runtime.scripts import status_of
from tests.kit.eventually import eventually
from tests.kit.server import ServerProcess
from tests.pickup.harness import DID, OTHER_DID, connected, gateway, sqlite, url_of

QUEUE = "default:c1"


def session_of(service: Gateway) -> LiveSession:
    found = service.rpc.sessions.get(QUEUE)
    assert found is not None
    return found


async def is_offline(service: Gateway, queue: str = QUEUE) -> bool:
    return status_of(await service.store.sessions.read(queue)) == "offline"


async def test_a_session_closed_at_another_gateway_stays_closed(
    any_redis_url: str, tmp_path: Path
) -> None:
    database = sqlite(tmp_path)
    async with gateway(any_redis_url, database) as first:
        prefix = first.runtime.settings.prefix
        async with (
            gateway(any_redis_url, database, prefix=prefix) as second,
            connected(first) as (old, inbox),
            connected(second) as (new, _),
        ):
            await old.add_live_session("c1", "s1")
            assert await new.remove_live_session("c1", "s1") is True
            await first.rpc.sessions.check_all()
            await eventually(lambda: len(first.rpc.sessions) == 0, 30)
            assert await is_offline(first)
            await new.add_message("c1", [DID], 1)
            assert await new.get_available_message_count("c1") == 1
            assert inbox.ids == []


async def test_a_session_without_a_client_is_closed_when_a_message_arrives(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path)) as service,
        connected(service) as (client, inbox),
    ):
        # As if Redis opened the session and its reply was lost.
        await service.store.sessions.open(QUEUE, "s1", "nobody")
        message = await client.add_message("c1", [DID], 1)
        await eventually(lambda: is_offline(service), 30)
        await client.add_live_session("c1", "s2")
        await inbox.has(message)


async def test_a_session_restored_for_a_disconnected_client_is_closed(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path)) as service,
        connected(service) as (client, _),
    ):
        await client.add_live_session("c1", "s1")
        sessions = service.rpc.sessions
        session = session_of(service)
        closing = service.store.sessions.close(QUEUE, gateway=service.store.gateway)
        assert status_of(await closing) == "closed"
        sessions.forget(QUEUE)
        await sessions.restore(session)
        assert await is_offline(service)


async def test_a_fetch_under_an_earlier_term_does_not_end_the_session(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path)) as service,
        connected(service) as (client, inbox),
    ):
        await client.add_live_session("c1", "s1")
        sessions = service.rpc.sessions
        session = session_of(service)
        session.fetching, session.fetch_term = True, "1"
        lost: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        lost.set_result([b"lost"])
        sessions.fetch_done(session, lost)
        message = await client.add_message("c1", [DID], 1)
        await inbox.has(message)


async def test_a_fetch_restores_a_session_that_was_closed_during_a_pause_of_its_gateway(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(any_redis_url, sqlite(tmp_path)) as service,
        connected(service) as (client, inbox),
    ):
        await client.add_live_session("c1", "s1")
        # Another gateway does the same when the lease of this one has run out.
        closing = service.store.sessions.close(QUEUE, gateway=service.store.gateway)
        assert status_of(await closing) == "closed"
        message = await client.add_message("c1", [DID], 1)
        service.rpc.sessions.wake(QUEUE)
        await inbox.has(message)
        assert len(service.rpc.sessions) == 1


async def test_a_session_opened_twice_gets_each_message_once(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path)) as service,
        connected(service) as (client, inbox),
    ):
        await client.add_live_session("c1", "s1")
        session = session_of(service)
        first = await client.add_message("c1", [DID], 1)
        await client.add_live_session("c1", "s1")
        assert session_of(service) is session
        second = await client.add_message("c1", [DID], 2)
        await inbox.has(first, second)
        assert inbox.ids == [first, second]


async def test_messages_that_arrive_together_leave_in_one_notification(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path)) as service,
        connected(service) as (client, inbox),
    ):
        await client.add_live_session("c1", "s1")
        ids = await asyncio.gather(*(client.add_message("c1", [DID], each) for each in range(250)))
        await inbox.has(*ids)
        assert inbox.ids == ids
        assert len(inbox.deliveries) < 125
        assert max(len(each.messages) for each in inbox.deliveries) <= 100


async def test_removing_a_recipients_messages_makes_space_in_the_window(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angarium.pickup.gateway.CHECK_SESSIONS_S", 3_600)
    limits = {"pickup_sending_messages_max": 2}
    async with (
        gateway(redis_url, sqlite(tmp_path), limits=limits) as service,
        connected(service) as (client, inbox),
    ):
        await client.add_live_session("c1", "s1")
        first = [await client.add_message("c1", [DID], each) for each in range(2)]
        await inbox.has(*first)
        third = await client.add_message("c1", [OTHER_DID], 3)
        await client.remove_all_messages("c1", DID)
        await inbox.has(third)


async def test_a_client_that_disconnects_during_a_take_deletes_nothing(
    redis_server: ServerProcess, tmp_path: Path
) -> None:
    async with (
        gateway(redis_server.url, sqlite(tmp_path), sending_ms=1) as service,
        connected(service) as (client, _),
    ):
        message = await client.add_message("c1", [DID], 1)
        witness = redis_server.client()
        async with aiohttp.ClientSession() as session:
            leaving = await session.ws_connect(url_of(service))
            await eventually(lambda: len(service.rpc.clients) == 2, 30)
            witness.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
            try:
                params = {"connectionId": "c1", "deleteMessages": True}
                await leaving.send_json(
                    {"jsonrpc": "2.0", "method": "takeFromQueue", "params": params, "id": 1}
                )
                await leaving.close()
                await eventually(lambda: len(service.rpc.clients) == 1, 30)
            finally:
                witness.execute_command("CLIENT", "UNPAUSE")

        async def there() -> bool:
            return [each.id for each in await client.take_from_queue("c1")] == [message]

        await eventually(there, 30)


async def test_a_fetch_does_not_deliver_messages_acknowledged_meanwhile(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path)) as service,
        connected(service) as (client, inbox),
    ):
        await client.add_live_session("c1", "s1")
        first = await client.add_message("c1", [DID], 1)
        await inbox.has(first)
        sessions = service.rpc.sessions
        session = session_of(service)
        # The acknowledgement arrives during a fetch that resends all messages.
        fetched = await service.store.pull(QUEUE, session.term, resend=True)
        session.fetching = True
        await client.remove_messages("c1", [first])
        late: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        late.set_result(fetched)
        sessions.fetch_done(session, late)
        second = await client.add_message("c1", [DID], 2)
        await inbox.has(second)
        assert inbox.ids == [first, second]
