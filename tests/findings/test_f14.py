"""Dead letters of routing: all of them are listed, and each can be dropped, also by HTTP."""

from __future__ import annotations

from angarium.routing.service import RoutingService
from tests.routing.harness import routing
from tests.routing.test_dead_letters import KINDS, Kind, add, ids
from tests.server.harness import running_api


@KINDS
async def test_f14_every_dead_letter_is_listed_by_pages(any_redis_url: str, kind: Kind) -> None:
    async with routing(any_redis_url) as (runtime, _):
        service = runtime.store(RoutingService)
        assert await ids(service, kind) == []
        wanted = [f"m{number}" for number in range(250)]
        await add(runtime, kind, *wanted)
        assert sorted(await ids(service, kind)) == sorted(wanted)
        assert sorted(await ids(service, kind, 7)) == sorted(wanted)


async def test_f14_operators_use_dead_letters_and_instances_over_http(
    redis_url: str, no_settings: object
) -> None:
    async with running_api(redis_url) as (runtime, call):
        await add(runtime, "inbound", "m1", "m2", "m3", reason="late")
        path = "/v1/routing/dead"
        status, page = await call("GET", f"{path}?limit=2")
        assert (status, [each["id"] for each in page["letters"]]) == (200, ["m1", "m2"])
        status, page = await call("GET", f"{path}?after={page['next']}")
        assert ([each["id"] for each in page["letters"]], page["next"]) == (["m3"], None)
        assert (await call("GET", f"{path}/m2"))[1]["reason"] == "late"
        assert (await call("DELETE", f"{path}/m2"))[0] == 204
        assert (await call("DELETE", f"{path}/m2"))[0] == 404
        retried = await call("POST", f"{path}/retry?reason=early")
        assert retried == (200, {"retried": 0, "unusable": 0})
        assert await call("DELETE", f"{path}?reason=late") == (200, {"dropped": 2})
        assert (await call("GET", f"{path}?limit=0"))[0] == 400
        assert (await call("DELETE", "/v1/routing/instances/nobody"))[0] == 404
        assert await call("POST", "/v1/routing/prune") == (200, {"instances": 0, "keys": 0})
