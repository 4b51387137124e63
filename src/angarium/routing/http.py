"""The routing module's HTTP API: recipient keys, instances, deliveries and dead letters."""

from __future__ import annotations

from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.routing.dead_letters import DeadRoutedMessage
from angarium.routing.instances import RoutingInstance
from angarium.routing.service import Pruned, RoutingService
from angarium.routing.store import KeyState
from angarium.runtime.application import Application
from angarium.runtime.dead_letters_http import DeadLetterOperations
from angarium.runtime.errors import InputInvalid
from angarium.runtime.http_api import (
    TRACE,
    HttpApi,
    Operation,
    Parameter,
    decode,
    read_bytes,
    reply,
    traceparent_of,
)
from angarium.runtime.runtime import Runtime


class InstanceList(msgspec.Struct, frozen=True):
    instances: list[RoutingInstance]
    keys_without_owner: int


class PruneRequest(msgspec.Struct, frozen=True):
    """`silent_ms` replaces the setting; `idle_keys` forgets all keys without messages."""

    silent_ms: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None
    idle_keys: bool = False


class RebalanceResult(msgspec.Struct, frozen=True):
    moved: int


class NewDelivery(msgspec.Struct, frozen=True):
    """`payload` is base64url."""

    url: str
    payload: str
    headers: dict[str, str] = {}


class QueuedDelivery(msgspec.Struct, frozen=True):
    status: str


class RoutingHttpApi:
    def __init__(self, runtime: Runtime) -> None:
        self._body_bytes_max = runtime.settings.limits.http_body_bytes_max
        self.service = runtime.store(RoutingService)

    async def show(self, request: Request) -> Response:
        return reply(await self.service.show(request.path_params["recip_key"]))

    async def instances(self, _: Request) -> Response:
        return reply(InstanceList(*await self.service.instances()))

    async def remove_instance(self, request: Request) -> Response:
        force = request.query_params.get("force", "false")
        if force not in ("true", "false"):
            raise InputInvalid("`force` must be true or false")
        uid: str = request.path_params["uid"]
        await self.service.remove_instance(uid, force=force == "true")
        return Response(status_code=204)

    async def prune(self, request: Request) -> Response:
        wanted = decode(await read_bytes(request, self._body_bytes_max) or b"{}", PruneRequest)
        pruned = await self.service.prune(wanted.silent_ms, idle_keys=wanted.idle_keys)
        return reply(pruned)

    async def rebalance(self, _: Request) -> Response:
        return reply(RebalanceResult(await self.service.rebalance()))

    async def deliver(self, request: Request) -> Response:
        body = await read_bytes(request, self._body_bytes_max)
        wanted = decode(body, NewDelivery)
        trace = traceparent_of(request)
        await self.service.deliver(wanted.url, wanted.payload, wanted.headers, trace)
        return reply(QueuedDelivery("queued"), 202)


def http_api(runtime: Runtime, app: Application) -> HttpApi:
    api = RoutingHttpApi(runtime)
    return HttpApi("routing", (*_key_operations(api), *_dead_operations(api.service)))


def _key_operations(api: RoutingHttpApi) -> tuple[Operation, ...]:
    key = Parameter("recip_key", "path", description="A recipient key, or several with commas.")
    return (
        Operation(
            "GET",
            "/v1/routing/keys/{recip_key:path}",
            "show_recipient_key",
            "The owner of a recipient key, and the number of messages that wait for it",
            api.show,
            answers={200: KeyState},
            parameters=(key,),
        ),
        Operation(
            "GET",
            "/v1/routing/instances",
            "list_routing_instances",
            "Every instance with its keys and the time since its last heartbeat",
            api.instances,
            answers={200: InstanceList},
        ),
        Operation(
            "DELETE",
            "/v1/routing/instances/{uid:path}",
            "remove_routing_instance",
            "Remove an instance that is silent, or with force a live one, from its keys",
            api.remove_instance,
            answers={204: None},
            parameters=(
                Parameter("uid", "path", {"type": "string", "minLength": 1}),
                Parameter("force", schema={"type": "boolean", "default": False}),
            ),
            scope="admin",
        ),
        Operation(
            "POST",
            "/v1/routing/prune",
            "prune_routing",
            "Remove instances that are gone, and forget keys that nobody uses",
            api.prune,
            body=PruneRequest,
            answers={200: Pruned},
            scope="admin",
        ),
        Operation(
            "POST",
            "/v1/routing/rebalance",
            "rebalance_recipient_keys",
            "Move keys without messages to instances that own fewer",
            api.rebalance,
            answers={200: RebalanceResult},
            scope="write",
        ),
        Operation(
            "POST",
            "/v1/routing/deliveries",
            "queue_delivery",
            "Queue a message for the deliverer",
            api.deliver,
            body=NewDelivery,
            answers={202: QueuedDelivery},
            parameters=[TRACE],
            scope="write",
        ),
    )


def _dead_operations(service: RoutingService) -> tuple[Operation, ...]:
    inbound = DeadLetterOperations(
        "/v1/routing/dead", "dead_inbound_message", "dead_inbound_messages",
        "messages that no instance could handle, the oldest first", DeadRoutedMessage,
        lambda _: service.dead_inbound,
    )  # fmt: skip
    outbound = DeadLetterOperations(
        "/v1/routing/dead-deliveries", "dead_delivery", "dead_deliveries",
        "deliveries that failed too often, the oldest first", DeadRoutedMessage,
        lambda _: service.dead_outbound,
    )  # fmt: skip
    return (*inbound.operations(), *outbound.operations())
