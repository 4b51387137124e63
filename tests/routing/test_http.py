"""The module's operations of the API, on a real API role."""

from __future__ import annotations

import base64
from typing import Any

import aiohttp
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from angarium.routing import keys
from angarium.routing.outbound_store import OutboundStore
from tests.faults.profile import rounds
from tests.kit.roles import RoleProcess
from tests.routing.harness import post, routing
from tests.routing.test_roles import environment


async def test_keys_instances_deliveries_and_dead_letters_over_http(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, store):
        await store.touch("a")
        await store.assign_recip_key_to_new_uid(["l", "m"])
        await post(store, "did:key:z/1", b"x")
        await store.touch("b")
        env = environment(runtime.settings, ANGARIUM_HTTP__PORT="0")
        async with (
            RoleProcess(["serve", "api"], env) as api,
            aiohttp.ClientSession(f"http://127.0.0.1:{api.ports['http']}") as client,
        ):
            shown = await (await client.get("/v1/routing/keys/did:key:z/1")).json()
            assert (shown["uid"], shown["pending"], shown["waiting"]) == ("a", 1, 1)
            missing = await client.get("/v1/routing/keys/never")
            assert missing.status == 404
            assert (await missing.json(content_type=None))["code"] == "recipient_unknown"
            listed = await (await client.get("/v1/routing/instances")).json()
            assert {each["uid"]: each["keys"] for each in listed["instances"]} == {"a": 3, "b": 0}
            assert listed["keys_without_owner"] == 0
            assert await (await client.post("/v1/routing/rebalance")).json() == {"moved": 1}

            payload = base64.urlsafe_b64encode(b"hello").decode()
            wanted = {"url": "https://example.org/in", "payload": payload}
            assert (await client.post("/v1/routing/deliveries", json=wanted)).status == 202
            bad = [
                ({**wanted, "payload": "!"}, 400),
                ({**wanted, "url": "ftp://x"}, 422),
                ({**wanted, "url": "http://127.0.0.1/"}, 422),
                ({}, 400),
            ]
            for body, status in bad:
                assert (await client.post("/v1/routing/deliveries", json=body)).status == status
            (lease,) = await OutboundStore(runtime, "native").take(0, 10)
            assert b"https://example.org/in" in lease.item

            place = runtime.keyspace.name(keys.OUTBOUND_DEAD)
            letters = [
                b'{"id":"1","reason":"answered 500","message":"{\\"retries\\":5}","at_ms":1}',
                b'{"id":"2","reason":"not an item","message":"nonsense","at_ms":2}',
            ]
            await runtime.redis.call("RPUSH", place, *letters, key=place)
            path = "/v1/routing/dead-deliveries"
            found = await (await client.get(path)).json()
            assert [each["reason"] for each in found["letters"]] == ["answered 500", "not an item"]
            answer = await (await client.post(f"{path}/retry")).json()
            assert answer == {"retried": 1, "unusable": 1}
            (lease,) = await OutboundStore(runtime, "native").take(0, 10)
            assert lease.item == b'{"retries":0}'
            page = await (await client.get("/openapi.json")).json()
            assert "/v1/routing/instances" in page["paths"]


def test_every_operation_conforms_to_the_openapi_page(redis_url: str) -> None:
    env = {"ANGARIUM_REDIS_URL": redis_url, "ANGARIUM_PREFIX": "routing-page:"}
    with RoleProcess(["serve", "api"], {**env, "ANGARIUM_HTTP__PORT": "0"}) as role:
        url = f"http://127.0.0.1:{role.ports['http']}"
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json").include(tag="routing")
        names = []
        for found in schema.get_all_operations():
            operation: Any = found.ok()  # type: ignore[union-attr]
            names.append(operation.label)

            @settings(
                max_examples=rounds(10, 300),
                suppress_health_check=list(HealthCheck),
                deadline=None,
            )
            @given(case=operation.as_strategy())
            def hold(case: Any) -> None:
                # That a URL must lead to a public address is more than a page can say.
                case.call_and_validate(excluded_checks=[positive_data_acceptance])

            hold()
        assert len(names) == 18
