"""F72: a connected client does not lose its session unnoticed."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest

from angarium.pickup.client import Delivery, PickupClient
from angarium.runtime.errors import AngariumError
from angarium.runtime.journal import Journal, decode_entry
from angarium.runtime.runtime import Runtime
from angarium.settings import load
from tests.kit.eventually import eventually
from tests.kit.proxy import ThreadedFaultProxy
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess
from tests.pickup.harness import connected, gateway, sqlite

DID = "did:example:anna"
DELAY_S = 2.0  # each way, to the server of the first gateway
IMPATIENT_S = 0.5
DEADLINE_S = 15.0
MESSAGES = 20


def url_of(role: RoleProcess) -> str:
    return f"ws://127.0.0.1:{role.ports['gateway']}/"


class Got:
    """Collects the payloads that a client received."""

    def __init__(self) -> None:
        self.payloads: list[object] = []

    def __call__(self, delivery: Delivery) -> None:
        self.payloads += [each.encrypted_message for each in delivery.messages]


async def opened_by(runtime: Runtime) -> list[str]:
    """The connections whose sessions were opened, in this order."""
    entries = await Journal(runtime).read(0, "0-0", 10_000)
    found = [event for entry in entries for event in decode_entry(*entry).events]
    return [str(event.key) for event in found if event.event == "session_opened"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", ["its server is far away", "its process is stopped"])
async def test_a_late_request_of_a_disconnected_client_does_not_end_its_session_at_another_gateway(
    redis_server: ServerProcess, tmp_path: Path, fault: str
) -> None:
    env = {
        "ANGARIUM_REDIS_URL": redis_server.url,
        "ANGARIUM_PREFIX": f"f{secrets.token_hex(3)}:",
        "ANGARIUM_HOME": str(tmp_path),
        "ANGARIUM_PICKUP__GRACE_MS": "100",
    }
    settings = load(redis_url=env["ANGARIUM_REDIS_URL"], prefix=env["ANGARIUM_PREFIX"])
    with ThreadedFaultProxy("127.0.0.1", redis_server.port) as line:
        far_away = {**env, "ANGARIUM_REDIS_URL": line.url}
        async with (
            RoleProcess(["serve", "gateway"], far_away) as first,
            RoleProcess(["serve", "gateway"], env) as second,
            Runtime.open(settings) as runtime,
        ):
            async with PickupClient(url_of(first), call_timeout_s=IMPATIENT_S) as client:
                if fault == "its process is stopped":
                    first.pause()
                else:
                    line.do(lambda proxy: proxy.delay(DELAY_S))
                with pytest.raises((AngariumError, TimeoutError)):
                    await client.add_live_session("c1", "s1")
            got = Got()
            async with PickupClient(url_of(second), on_messages=got) as client:
                await client.add_live_session("c1", "s1")
                assert await opened_by(runtime) == ["default:c1"]
                first.resume()
                # The first gateway sends this request after the earlier one of its client.
                async with PickupClient(url_of(first)) as other:
                    await other.add_live_session("c2", "s1")
                    line.do(lambda proxy: proxy.heal())
                    for number in range(MESSAGES):
                        await client.add_message("c1", [DID], number)
                    wanted = list(range(MESSAGES))
                    await eventually(lambda: got.payloads == wanted, DEADLINE_S)
                    assert await client.get_live_session("c1")


async def test_a_session_that_is_being_restored_survives_the_check_of_all_sessions(
    redis_url: str, tmp_path: Path
) -> None:
    """Redis has the new term before the gateway has read the reply."""
    async with (
        gateway(redis_url, sqlite(tmp_path)) as service,
        connected(service) as (client, inbox),
    ):
        await client.add_live_session("c1", "s1")
        sessions, store, queue = service.rpc.sessions, service.store, "default:c1"
        for _ in range(5):
            session = sessions.get(queue)
            assert session is not None
            socket = session.client.id
            await store.sessions.close(queue, gateway=store.gateway, socket=socket)
            await store.sessions.open(queue, "s1", socket)
            await sessions.check_all()
            await inbox.has(await client.add_message("c1", [DID], 1))


async def test_concurrent_restores_of_a_session_restore_it_once(
    redis_url: str, tmp_path: Path
) -> None:
    """After an outage: the lease was renewed, fetches are refused, and hints may be missing."""
    async with (
        gateway(redis_url, sqlite(tmp_path)) as service,
        connected(service) as (client, inbox),
    ):
        sessions, store = service.rpc.sessions, service.store
        names = [f"c{number}" for number in range(20)]
        for name in names:
            await client.add_live_session(name, "s1")
        for _ in range(10):
            found = list(sessions)
            for each in found:
                await store.sessions.close(each.queue, gateway=store.gateway, socket=each.client.id)
            restoring = [sessions.restore_partition(0), sessions.check_all(), sessions.check_all()]
            await asyncio.gather(*restoring, *map(sessions.restore_after_fetch, found))
        assert len(sessions) == len(names)
        await inbox.has(*[await client.add_message(name, [DID], 1) for name in names])
