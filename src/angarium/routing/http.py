"""The routing module's HTTP API: recipient keys, instances, deliveries and dead letters."""

from __future__ import annotations

from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.routing.dead_letters import (
    PAGE_LETTERS_MAX,
    DeadMessage,
    DeadMessagePage,
    RoutingDeadLetters,
)
from angarium.routing.service import Pruned, RoutingService
from angarium.routing.store import KeyState, RoutingInstance
from angarium.runtime.application import Angarium
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


class ReviveResult(msgspec.Struct, frozen=True):
    revived: int


class DropResult(msgspec.Struct, frozen=True):
    dropped: int


class RevivedDeadLetter(msgspec.Struct, frozen=True):
    id: str
    status: str


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


class DeadLettersHttpApi:
    """The operations on the dead letters of one kind."""

    def __init__(self, letters: RoutingDeadLetters) -> None:
        self._letters = letters

    async def list(self, request: Request) -> Response:
        limit = _limit(request.query_params.get("limit", str(PAGE_LETTERS_MAX)))
        return reply(await self._letters.page(limit, request.query_params.get("after")))

    async def show(self, request: Request) -> Response:
        return reply((await self._letters.find(request.path_params["id"])).dead)

    async def retry(self, request: Request) -> Response:
        id: str = request.path_params["id"]
        return reply(RevivedDeadLetter(id, await self._letters.retry(id)))

    async def retry_all(self, request: Request) -> Response:
        statuses = await self._letters.retry_all(request.query_params.get("reason"))
        return reply(ReviveResult(sum(statuses[each] for each in ("queued", "kept", "revived"))))

    async def drop(self, request: Request) -> Response:
        await self._letters.drop(request.path_params["id"])
        return Response(status_code=204)

    async def drop_all(self, request: Request) -> Response:
        statuses = await self._letters.drop_all(request.query_params.get("reason"))
        return reply(DropResult(statuses["dropped"]))


def http_api(runtime: Runtime, app: Angarium) -> HttpApi:
    api = RoutingHttpApi(runtime)
    outbound = DeadLettersHttpApi(api.service.dead_outbound)
    inbound = DeadLettersHttpApi(api.service.dead_inbound)
    return HttpApi(
        "routing",
        (
            *_key_operations(api),
            *_dead_operations(outbound, "/v1/routing/dead", "delivery", "deliveries"),
            *_dead_operations(inbound, "/v1/routing/dead-inbound", "inbound", "inbound"),
        ),
    )


def _limit(text: str) -> int:
    if not text.isdecimal() or not text.isascii() or not 1 <= int(text) <= PAGE_LETTERS_MAX:
        raise InputInvalid(f"`limit` must be a whole number from 1 to {PAGE_LETTERS_MAX}")
    return int(text)


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


def _dead_operations(
    api: DeadLettersHttpApi, path: str, one: str, many: str
) -> tuple[Operation, ...]:
    id = Parameter("id", "path", {"type": "string", "minLength": 1}, "From the list.")
    numbers = {"type": "integer", "minimum": 1, "maximum": PAGE_LETTERS_MAX}
    paged = (
        Parameter("limit", schema={**numbers, "default": PAGE_LETTERS_MAX}),
        Parameter("after", description="`next` of the previous page."),
    )
    reason = Parameter("reason", description="Only letters whose reason begins so.")
    what = "a message that no instance could handle" if one == "inbound" else "a dead delivery"
    return (
        Operation(
            "GET", path, f"list_dead_{many}",
            f"List what became {what}, oldest first, with the reasons; pages end at 1 MiB",
            api.list, answers={200: DeadMessagePage}, parameters=paged,
        ),
        Operation(
            "GET", path + "/{id}", f"show_dead_{one}", f"Show {what}",
            api.show, answers={200: DeadMessage}, parameters=(id,),
        ),
        Operation(
            "POST", path + "/{id}/revive", f"revive_dead_{one}", f"Queue {what} again",
            api.retry, answers={200: RevivedDeadLetter}, parameters=(id,), scope="write",
        ),
        Operation(
            "POST", path + "/revive",
            "revive_all_dead_inbound" if one == "inbound" else "revive_dead_deliveries",
            "Queue all of them again, or all of a reason, the oldest first",
            api.retry_all, answers={200: ReviveResult}, parameters=(reason,), scope="write",
        ),
        Operation(
            "DELETE", path + "/{id}", f"drop_dead_{one}", f"Remove {what} for good",
            api.drop, answers={204: None}, parameters=(id,), scope="admin",
        ),
        Operation(
            "DELETE", path, f"drop_dead_{many}" if one != many else "drop_all_dead_inbound",
            "Remove all of them for good, or all of a reason",
            api.drop_all, answers={200: DropResult}, parameters=(reason,), scope="admin",
        ),
    )  # fmt: skip
