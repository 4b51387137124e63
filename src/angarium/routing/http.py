"""The routing module's HTTP API: recipient keys, instances, deliveries and dead letters."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.routing.envelope import decode_base64url
from angarium.routing.listing_store import RoutingListing
from angarium.routing.outbound_store import OutboundStore
from angarium.routing.role_settings import routing_store
from angarium.routing.settings import RoutingSettings
from angarium.routing.store import KeyState, RoutingInstance, StoredDeadLetter
from angarium.runtime.application import Angarium
from angarium.runtime.errors import Conflict, InputInvalid, NotFound
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
from angarium.runtime.outbound import check_url
from angarium.runtime.runtime import Runtime
from angarium.runtime.trace import TRACEPARENT

# A page of dead letters; each may be as large as a message.
DEAD_LETTERS_MAX = 100


class InstanceList(msgspec.Struct, frozen=True):
    instances: list[RoutingInstance]
    keys_without_owner: int


class RebalanceResult(msgspec.Struct, frozen=True):
    moved: int


class ReviveResult(msgspec.Struct, frozen=True):
    revived: int


class DeadDelivery(msgspec.Struct, frozen=True):
    reason: str
    message: str
    at_ms: float
    id: str = ""


DeadLetterKind = TypeVar("DeadLetterKind", bound=DeadDelivery)


class DeadDeliveryList(msgspec.Struct, frozen=True):
    letters: list[DeadDelivery]


class DeadInbound(DeadDelivery, frozen=True):
    """A message that no instance could handle; `message` is the item from its list."""

    recip_key: str = ""


class DeadInboundList(msgspec.Struct, frozen=True):
    letters: list[DeadInbound]


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
        settings = runtime.settings
        self._limits = settings.limits
        self._allow_private = settings.allow_private_addresses
        self._store = runtime.store(routing_store)
        self._outbound = OutboundStore(runtime, settings.group(RoutingSettings).layout.value)
        self._listing = RoutingListing(runtime)

    async def show(self, request: Request) -> Response:
        return reply(await self._store.show(request.path_params["recip_key"]))

    async def instances(self, _: Request) -> Response:
        return reply(InstanceList(*await self._store.instances()))

    async def rebalance(self, _: Request) -> Response:
        return reply(RebalanceResult(await self._store.rebalance()))

    async def deliver(self, request: Request) -> Response:
        body = await read_bytes(request, self._limits.http_body_bytes_max)
        wanted = decode(body, NewDelivery)
        check_url(wanted.url, allow_private=self._allow_private)
        try:
            payload = decode_base64url(wanted.payload)
        except ValueError as error:
            raise InputInvalid(f"`payload` is not base64url: {error}") from None
        headers, trace = wanted.headers, traceparent_of(request)
        if trace and TRACEPARENT not in {name.lower() for name in headers}:
            headers = {TRACEPARENT: trace, **headers}
        await self._outbound.push(wanted.url, payload, headers)
        return reply(QueuedDelivery("queued"), 202)

    async def dead_deliveries(self, _: Request) -> Response:
        found = await self._outbound.dead_letters(DEAD_LETTERS_MAX)
        return reply(DeadDeliveryList([read_dead_letter(each, DeadDelivery) for each in found]))

    async def dead_inbound(self, _: Request) -> Response:
        found = await self._listing.dead_inbound(DEAD_LETTERS_MAX)
        return reply(DeadInboundList([read_dead_letter(each, DeadInbound) for each in found]))

    async def revive_inbound(self, request: Request) -> Response:
        id: str = request.path_params["id"]
        found = [each for each in await self._stored_dead_inbound() if each.id == id]
        status = (await self._store.revive(found[:1]) or ["unknown"])[0]
        if status == "unknown":
            raise NotFound(f"there is no dead message {id!r} among the oldest {DEAD_LETTERS_MAX}")
        if status == "unreadable":
            raise Conflict("the message can't be read, so it can't be handled either")
        return reply(RevivedDeadLetter(id, status))

    async def revive_all_inbound(self, _: Request) -> Response:
        statuses = await self._store.revive(await self._stored_dead_inbound())
        return reply(ReviveResult(sum(each in ("queued", "kept") for each in statuses)))

    async def _stored_dead_inbound(self) -> list[StoredDeadLetter]:
        found = []
        for raw in await self._listing.dead_inbound(DEAD_LETTERS_MAX):
            dead = read_dead_letter(raw, DeadInbound)
            found.append(StoredDeadLetter(dead.id, dead.recip_key, raw))
        return found

    async def revive_delivery(self, request: Request) -> Response:
        id: str = request.path_params["id"]
        status = await self._outbound.revive_one(id, DEAD_LETTERS_MAX)
        if status == "unknown":
            raise NotFound(f"there is no dead delivery {id!r} among the oldest {DEAD_LETTERS_MAX}")
        if status == "unreadable":
            raise Conflict("the message can't be read, so it can't be delivered either")
        return reply(RevivedDeadLetter(id, status))

    async def revive_all_deliveries(self, _: Request) -> Response:
        return reply(ReviveResult(await self._outbound.revive(DEAD_LETTERS_MAX)))


def read_dead_letter(raw: bytes, kind: type[DeadLetterKind]) -> DeadLetterKind:
    """An entry of another program is shown as it is; it must not make a page unreadable."""
    text = raw.decode(errors="replace")
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return kind(reason="this letter can't be read", message=text, at_ms=0)


def http_api(runtime: Runtime, app: Angarium) -> HttpApi:
    api = RoutingHttpApi(runtime)
    return HttpApi("routing", (*_key_operations(api), *_delivery_operations(api)))


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
            "POST",
            "/v1/routing/rebalance",
            "rebalance_recipient_keys",
            "Move keys without messages to instances that own fewer",
            api.rebalance,
            answers={200: RebalanceResult},
            scope="write",
        ),
    )


def _delivery_operations(api: RoutingHttpApi) -> tuple[Operation, ...]:
    dead_id = Parameter("id", "path", {"type": "string", "minLength": 1}, "From the list.")
    return (
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
        Operation(
            "GET",
            "/v1/routing/dead",
            "list_dead_deliveries",
            "The oldest messages that could not be delivered, with the reasons",
            api.dead_deliveries,
            answers={200: DeadDeliveryList},
        ),
        Operation(
            "GET",
            "/v1/routing/dead-inbound",
            "list_dead_inbound",
            "The oldest messages that no instance could handle, with the reasons",
            api.dead_inbound,
            answers={200: DeadInboundList},
        ),
        Operation(
            "POST",
            "/v1/routing/dead-inbound/{id}/revive",
            "revive_dead_inbound",
            "Queue one message that no instance could handle again",
            api.revive_inbound,
            answers={200: RevivedDeadLetter},
            parameters=(dead_id,),
            scope="write",
        ),
        Operation(
            "POST",
            "/v1/routing/dead-inbound/revive",
            "revive_all_dead_inbound",
            "Queue messages that no instance could handle again",
            api.revive_all_inbound,
            answers={200: ReviveResult},
            scope="write",
        ),
        Operation(
            "POST",
            "/v1/routing/dead/{id}/revive",
            "revive_dead_delivery",
            "Queue one dead delivery again",
            api.revive_delivery,
            answers={200: RevivedDeadLetter},
            parameters=(dead_id,),
            scope="write",
        ),
        Operation(
            "POST",
            "/v1/routing/dead/revive",
            "revive_dead_deliveries",
            "Queue dead deliveries again, the oldest first",
            api.revive_all_deliveries,
            answers={200: ReviveResult},
            scope="write",
        ),
    )
