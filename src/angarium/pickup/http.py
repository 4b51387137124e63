"""The pickup module's part of the API: queues, live sessions, emptying a queue."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.pickup.archive import Archive
from angarium.pickup.inspection import Inspection, Overview, Shown
from angarium.pickup.model import DEFAULT_TENANT
from angarium.pickup.store import PickupStore
from angarium.runtime.application import Angarium
from angarium.runtime.http_api import HttpApi, Operation, Parameter, reply
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service

TENANT = Parameter("tenant", description="Whose connection it is; `default` without tenants.")
RECIPIENT = Parameter("recipient", description="Only messages of this recipient DID.")
CONNECTION = Parameter("connection", "path", description="Connection id.")


class Drained(msgspec.Struct, frozen=True):
    removed: int


class _Queues(Service):
    """Holds the database open for as long as the API runs, from the first question on."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("pickup-api", clock=runtime.clock)
        self._runtime = runtime
        self._archive: Archive | None = None
        self._inspection: Inspection | None = None
        self._opening = asyncio.Lock()

    async def inspection(self) -> Inspection:
        async with self._opening:
            if self._inspection is None:
                settings = self._runtime.settings
                self._archive = await Archive.open(settings.database_url, settings.prefix)
                self._inspection = Inspection(PickupStore(self._runtime), self._archive)
            return self._inspection

    async def on_close(self) -> None:
        archive, self._archive, self._inspection = self._archive, None, None
        if archive is not None:
            await archive.close()


def http_api(runtime: Runtime, app: Angarium) -> HttpApi:
    queues = _Queues(runtime)

    async def overview(_: Request) -> Response:
        return reply(await (await queues.inspection()).overview())

    async def show(request: Request) -> Response:
        tenant = request.query_params.get("tenant", DEFAULT_TENANT)
        inspection = await queues.inspection()
        return reply(await inspection.show(tenant, request.path_params["connection"]))

    async def drain(request: Request) -> Response:
        query = request.query_params
        tenant, recipient = query.get("tenant", DEFAULT_TENANT), query.get("recipient", "")
        inspection = await queues.inspection()
        connection = request.path_params["connection"]
        return reply(Drained(await inspection.drain(tenant, connection, recipient)))

    path = "/v1/pickup/connections/{connection:path}"
    return HttpApi(
        "pickup",
        (
            Operation(
                "GET", "/v1/pickup", "pickup_overview", "How the pickup module stands.", overview,
                answers={200: Overview},
            ),
            Operation(
                "GET", path, "pickup_connection", "What waits for a connection.", show,
                answers={200: Shown}, parameters=(CONNECTION, TENANT),
            ),
            Operation(
                "DELETE", path, "pickup_drain", "Remove every message of a connection.", drain,
                answers={200: Drained}, parameters=(CONNECTION, TENANT, RECIPIENT), scope="write",
            ),
        ),
        service=queues,
    )  # fmt: skip
