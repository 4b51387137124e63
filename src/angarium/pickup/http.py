"""HTTP operations of the pickup module: show queues and live sessions, empty a queue."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.pickup.model import DEFAULT_TENANT
from angarium.pickup.service import ConnectionQueue, PickupOverview, PickupService
from angarium.runtime.application import Application
from angarium.runtime.http_api import HttpApi, Operation, Parameter, reply
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.runtime.tenants import by_query

TENANT = Parameter("tenant", description="The connection's tenant; `default` without tenants.")
RECIPIENT = Parameter("recipient", description="Only messages of this recipient DID.")
CONNECTION = Parameter("connection", "path", description="Connection id.")


class DrainResult(msgspec.Struct, frozen=True):
    removed: int


class _ClosingService(Service):
    """Closes the database when the API stops."""

    def __init__(self, runtime: Runtime, pickup: PickupService) -> None:
        super().__init__("pickup-api", clock=runtime.clock)
        self._pickup = pickup

    async def on_close(self) -> None:
        await self._pickup.close()


def http_api(runtime: Runtime, app: Application) -> HttpApi:
    pickup = PickupService(runtime)

    async def overview(_: Request) -> Response:
        return reply(await pickup.overview())

    async def show(request: Request) -> Response:
        tenant = request.query_params.get("tenant", DEFAULT_TENANT)
        return reply(await pickup.show(tenant, request.path_params["connection"]))

    async def drain(request: Request) -> Response:
        query = request.query_params
        tenant, recipient = query.get("tenant", DEFAULT_TENANT), query.get("recipient", "")
        removed = await pickup.drain(tenant, request.path_params["connection"], recipient)
        return reply(DrainResult(removed))

    path = "/v1/pickup/connections/{connection:path}"
    return HttpApi(
        "pickup",
        (
            Operation(
                "GET", "/v1/pickup", "pickup_overview",
                "Gateways, queues and totals of the pickup module.", overview,
                answers={200: PickupOverview},
            ),
            Operation(
                "GET", path, "pickup_connection",
                "The queue and the live session of a connection.", show,
                answers={200: ConnectionQueue}, parameters=(CONNECTION, TENANT),
                tenant=by_query("tenant"),
            ),
            Operation(
                "DELETE", path, "pickup_drain", "Remove every message of a connection.", drain,
                answers={200: DrainResult}, parameters=(CONNECTION, TENANT, RECIPIENT),
                scope="write", tenant=by_query("tenant"),
            ),
        ),
        service=_ClosingService(runtime, pickup),
    )  # fmt: skip
