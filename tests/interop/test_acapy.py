"""Real ACA-Py agents talk through relay, Redis and deliverer, with our plugin inside one."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.faults.profile import LONG
from tests.interop.acapy_agent import Agent, agent
from tests.kit.eventually import eventually
from tests.kit.ports import free_port
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess
from tests.routing.harness import events, routing

pytestmark = pytest.mark.timeout(900)  # the first run installs the agent
DEADLINE_S = 60.0
PLUGIN = "angarium.routing.acapy"


def environment(settings: Any, layout: str) -> dict[str, str]:
    return {
        "ANGARIUM_REDIS_URL": settings.redis_url,
        "ANGARIUM_PREFIX": settings.prefix,
        "ANGARIUM_ROUTING__LAYOUT": layout,
        "ANGARIUM_ALLOW_PRIVATE_ADDRESSES": "true",
        "INBOUND_TRANSPORT_CONFIG": '[["http","127.0.0.1","0"]]',
    }


async def connect(inviter: Agent, invited: Agent) -> tuple[str, str]:
    """Both connection ids, once both sides call the connection active."""
    made = await inviter.call("POST", "/connections/create-invitation")
    taken = await invited.call("POST", "/connections/receive-invitation", made["invitation"])
    ids = made["connection_id"], taken["connection_id"]

    async def active() -> bool:
        states = [
            await each.connection_state(one)
            for each, one in zip((inviter, invited), ids, strict=True)
        ]
        return states == ["active", "active"]

    await eventually(active, DEADLINE_S)
    return ids


@pytest.mark.parametrize("layout", ["native", *(["acapy"] if LONG else [])])
async def test_two_agents_exchange_messages_both_ways_through_redis(
    redis_server: ServerProcess, layout: str
) -> None:
    async with routing(redis_server.url, layout=layout) as (runtime, _):
        settings = runtime.settings
        received = f"{settings.prefix}basicmessage-received"
        plugin = {
            "connection": {"connection_url": settings.redis_url},
            "prefix": settings.prefix,
            "layout": layout,
            "event": {"event_topic_maps": {"acapy::basicmessage::received": received}},
        }
        port = free_port()
        env = environment(settings, layout)
        async with (
            RoleProcess(["serve", "relay", "deliverer"], env, ready_lines=2) as roles,
            agent(
                "bob",
                f"http://127.0.0.1:{roles.ports['http']}",
                ["-it", PLUGIN, "redis", "0", "-ot", PLUGIN],
                plugin,
            ) as bob,
            agent(
                "alice",
                f"http://127.0.0.1:{port}",
                ["-it", "http", "127.0.0.1", str(port), "-ot", "http"],
            ) as alice,
        ):
            at_bob, at_alice = await connect(bob, alice)
            text = {"content": "to bob, through relay and Redis"}
            await alice.call("POST", f"/connections/{at_alice}/send-message", text)
            text = {"content": "to alice, through Redis and deliverer"}
            await bob.call("POST", f"/connections/{at_bob}/send-message", text)
            witness = redis_server.client(decode_responses=True)

            def came() -> list[str]:
                """What Bob's plugin wrote of the messages he got."""
                rows = witness.lrange(received, 0, -1)
                return [json.loads(row)["payload"]["payload"]["content"] for row in rows]

            await eventually(lambda: "to bob, through relay and Redis" in came(), DEADLINE_S)

            def at_alices() -> bool:
                said = "Received basic message: to alice, through Redis and deliverer"
                return said in alice.log.read_text()

            await eventually(at_alices, DEADLINE_S)

            async def balanced() -> bool:
                names = [event.event for event in await events(runtime)]
                queued, out = names.count("accepted"), names.count("outbound_accepted")
                return (
                    queued == names.count("handled") > 2
                    and out == names.count("outbound_delivered") > 2
                )

            await eventually(balanced, DEADLINE_S)


async def test_a_mediator_writes_into_the_lists_of_its_recipients(
    redis_server: ServerProcess,
) -> None:
    """Mediator mode: what the agent sends is routed like what comes in at a relay."""
    async with routing(redis_server.url) as (runtime, store):
        settings = runtime.settings
        plugin = {
            "connection": {"connection_url": settings.redis_url},
            "prefix": settings.prefix,
            "outbound": {"is_mediator": True},
        }
        await store.touch("somebody")
        port = free_port()
        async with agent(
            "mediator",
            f"http://127.0.0.1:{port}",
            ["-it", "http", "127.0.0.1", str(port), "-ot", PLUGIN],
            plugin,
        ) as mediator:
            did = await mediator.call("POST", "/wallet/did/create", {"method": "sov"})
            key = did["result"]["verkey"]
            invitation = {
                "@type": "https://didcomm.org/connections/1.0/invitation",
                "@id": "one",
                "label": "receiver",
                "recipientKeys": [key],
                "serviceEndpoint": "http://127.0.0.1:1/",
            }
            await mediator.call("POST", "/connections/receive-invitation", invitation)

            async def queued() -> bool:
                claim = await store.claim("somebody", 0, 10, again=True)
                return claim is not None and key in [*claim.again, *claim.fresh]

            await eventually(queued, DEADLINE_S)
            (items,) = await store.take("somebody", 0, [key], 1)
            item = json.loads(items[0])
            packed = json.loads(base64.urlsafe_b64decode(item["payload"]))
            assert set(item) == {"id", "payload"}
            assert "ciphertext" in packed
