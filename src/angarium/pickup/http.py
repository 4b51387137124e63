"""HTTP operations of the pickup module: show queues and live sessions, empty a queue."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.pickup.archive import MessageArchive
from angarium.pickup.inspection import ConnectionQueue, Inspection, PickupOverview
from angarium.pickup.model import DEFAULT_TENANT
from angarium.pickup.store import PickupStore
from angarium.runtime.application import Angarium
from angarium.runtime.http_api import HttpApi, Operation, Parameter, reply
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.runtime.tenants import by_query

TENANT = Parameter("tenant", description="The connection's tenant; `default` without tenants.")
RECIPIENT = Parameter("recipient", description="Only messages of this recipient DID.")
CONNECTION = Parameter("connection", "path", description="Connection id.")


class DrainResult(msgspec.Struct, frozen=True):
    removed: int


class _InspectionService(Service):
    """Opens the database at the first request and closes it when the API stops."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("pickup-api", clock=runtime.clock)
        self._runtime = runtime
        self._archive: MessageArchive | None = None
        self._inspection: Inspection | None = None
        self._opening = asyncio.Lock()

    async def inspection(self) -> Inspection:
        async with self._opening:
            if self._inspection is None:
                settings = self._runtime.settings
                self._archive = await MessageArchive.open(settings.database_url, settings.prefix)
                self._inspection = Inspection(self._runtime.store(PickupStore), self._archive)
            return self._inspection

    async def on_close(self) -> None:
        archive, self._archive, self._inspection = self._archive, None, None
        if archive is not None:
            await archive.close()


def http_api(runtime: Runtime, app: Angarium) -> HttpApi:
    service = _InspectionService(runtime)

    async def overview(_: Request) -> Response:
        return reply(await (await service.inspection()).overview())

    async def show(request: Request) -> Response:
        tenant = request.query_params.get("tenant", DEFAULT_TENANT)
        inspection = await service.inspection()
        return reply(await inspection.show(tenant, request.path_params["connection"]))

    async def drain(request: Request) -> Response:
        query = request.query_params
        tenant, recipient = query.get("tenant", DEFAULT_TENANT), query.get("recipient", "")
        inspection = await service.inspection()
        connection = request.path_params["connection"]
        return reply(DrainResult(await inspection.drain(tenant, connection, recipient)))

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
        service=service,
    )  # fmt: skip
