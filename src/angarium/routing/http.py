"""The routing module's part of the API: who owns a key, which instances there are, dead letters."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.routing.envelope import decode_base64url
from angarium.routing.listening import rules_of
from angarium.routing.listing_store import RoutingListing
from angarium.routing.outbound_store import OutboundStore
from angarium.routing.store import DeadMessage, RoutingStore
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
CHARS_MAX = 100


class KeyShown(msgspec.Struct, frozen=True):
    recip_key: str
    uid: str | None
    pending: int
    waiting: int
    silent_ms: int | None
    partition: int


class InstanceShown(msgspec.Struct, frozen=True):
    uid: str
    silent_ms: int | None
    keys: int
    has_mail: bool
    live: bool


class InstancesShown(msgspec.Struct, frozen=True):
    instances: list[InstanceShown]
    keys_without_owner: int


class Rebalanced(msgspec.Struct, frozen=True):
    moved: int


class Revived(msgspec.Struct, frozen=True):
    revived: int


class DeadLetter(msgspec.Struct, frozen=True):
    reason: str
    message: str
    at_ms: float
    id: str = ""


Letter = TypeVar("Letter", bound=DeadLetter)


class DeadLetters(msgspec.Struct, frozen=True):
    letters: list[DeadLetter]


class DeadInbound(DeadLetter, frozen=True):
    """A message that no instance could handle; `message` is the item as it stood in the list."""

    recip_key: str = ""


class DeadInbounds(msgspec.Struct, frozen=True):
    letters: list[DeadInbound]


class RevivedLetter(msgspec.Struct, frozen=True):
    id: str
    status: str


class NewDelivery(msgspec.Struct, frozen=True):
    """`payload` is base64url."""

    url: str
    payload: str
    headers: dict[str, str] = {}


class Queued(msgspec.Struct, frozen=True):
    status: str


class RoutingFace:
    def __init__(self, runtime: Runtime) -> None:
        settings = runtime.settings
        self._limits = settings.limits
        self._allow_private = settings.allow_private_addresses
        self._store = RoutingStore(runtime, rules_of(settings), settings.limits)
        self._outbound = OutboundStore(runtime, settings.routing.layout.value)
        self._listing = RoutingListing(runtime)

    async def show(self, request: Request) -> Response:
        state = await self._store.show(request.path_params["recip_key"])
        return reply(msgspec.convert(state, KeyShown, from_attributes=True))

    async def instances(self, _: Request) -> Response:
        found, unowned = await self._store.instances()
        shown = msgspec.convert(found, list[InstanceShown], from_attributes=True)
        return reply(InstancesShown(shown, unowned))

    async def rebalance(self, _: Request) -> Response:
        return reply(Rebalanced(await self._store.rebalance()))

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
        return reply(Queued("queued"), 202)

    async def dead(self, _: Request) -> Response:
        found = await self._outbound.dead(CHARS_MAX)
        return reply(DeadLetters([read_letter(each, DeadLetter) for each in found]))

    async def dead_inbound(self, _: Request) -> Response:
        found = await self._listing.dead_inbound(CHARS_MAX)
        return reply(DeadInbounds([read_letter(each, DeadInbound) for each in found]))

    async def revive_inbound(self, request: Request) -> Response:
        id: str = request.path_params["id"]
        letters = [each for each in await self._dead_messages() if each.id == id]
        status = (await self._store.revive(letters[:1]) or ["unknown"])[0]
        if status == "unknown":
            raise NotFound(f"there is no dead message {id!r} among the oldest {CHARS_MAX}")
        if status == "unreadable":
            raise Conflict("the message can't be read, so it can't be handled either")
        return reply(RevivedLetter(id, status))

    async def revive_all_inbound(self, _: Request) -> Response:
        statuses = await self._store.revive(await self._dead_messages())
        return reply(Revived(sum(each in ("queued", "kept") for each in statuses)))

    async def _dead_messages(self) -> list[DeadMessage]:
        found = []
        for raw in await self._listing.dead_inbound(CHARS_MAX):
            letter = read_letter(raw, DeadInbound)
            found.append(DeadMessage(letter.id, letter.recip_key, raw))
        return found

    async def revive_one(self, request: Request) -> Response:
        id: str = request.path_params["id"]
        status = await self._outbound.revive_one(id, CHARS_MAX)
        if status == "unknown":
            raise NotFound(f"there is no dead delivery {id!r} among the oldest {CHARS_MAX}")
        if status == "unreadable":
            raise Conflict("the message can't be read, so it can't be delivered either")
        return reply(RevivedLetter(id, status))

    async def revive(self, _: Request) -> Response:
        return reply(Revived(await self._outbound.revive(CHARS_MAX)))


def read_letter(raw: bytes, kind: type[Letter]) -> Letter:
    """One that somebody else wrote is shown too, or a page of letters could not be had for it."""
    text = raw.decode(errors="replace")
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return kind(reason="this letter can't be read", message=text, at_ms=0)


def http_api(runtime: Runtime, app: Angarium) -> HttpApi:
    module = RoutingFace(runtime)
    return HttpApi("routing", (*_about_keys(module), *_about_deliveries(module)))


def _about_keys(module: RoutingFace) -> tuple[Operation, ...]:
    key = Parameter("recip_key", "path", description="A recipient key, or several with commas.")
    return (
        Operation(
            "GET",
            "/v1/routing/keys/{recip_key:path}",
            "show_recipient_key",
            "Who owns a recipient key, and what waits for it",
            module.show,
            answers={200: KeyShown},
            parameters=(key,),
        ),
        Operation(
            "GET",
            "/v1/routing/instances",
            "list_routing_instances",
            "Every instance with its keys and the time since it was last heard of",
            module.instances,
            answers={200: InstancesShown},
        ),
        Operation(
            "POST",
            "/v1/routing/rebalance",
            "rebalance_recipient_keys",
            "Move keys without mail to instances that own fewer",
            module.rebalance,
            answers={200: Rebalanced},
            scope="write",
        ),
    )


def _about_deliveries(module: RoutingFace) -> tuple[Operation, ...]:
    letter = Parameter("id", "path", {"type": "string", "minLength": 1}, "As the list has it.")
    return (
        Operation(
            "POST",
            "/v1/routing/deliveries",
            "queue_delivery",
            "Queue a message for the deliverer",
            module.deliver,
            body=NewDelivery,
            answers={202: Queued},
            parameters=[TRACE],
            scope="write",
        ),
        Operation(
            "GET",
            "/v1/routing/dead",
            "list_dead_deliveries",
            "The oldest messages that could not be delivered, with the reasons",
            module.dead,
            answers={200: DeadLetters},
        ),
        Operation(
            "GET",
            "/v1/routing/dead-inbound",
            "list_dead_inbound",
            "The oldest messages that no instance could handle, with the reasons",
            module.dead_inbound,
            answers={200: DeadInbounds},
        ),
        Operation(
            "POST",
            "/v1/routing/dead-inbound/{id}/revive",
            "revive_dead_inbound",
            "Give one message that no instance could handle to its key's instance again",
            module.revive_inbound,
            answers={200: RevivedLetter},
            parameters=(letter,),
            scope="write",
        ),
        Operation(
            "POST",
            "/v1/routing/dead-inbound/revive",
            "revive_all_dead_inbound",
            "Give messages that no instance could handle to their keys' instances again",
            module.revive_all_inbound,
            answers={200: Revived},
            scope="write",
        ),
        Operation(
            "POST",
            "/v1/routing/dead/{id}/revive",
            "revive_dead_delivery",
            "Queue one dead delivery again",
            module.revive_one,
            answers={200: RevivedLetter},
            parameters=(letter,),
            scope="write",
        ),
        Operation(
            "POST",
            "/v1/routing/dead/revive",
            "revive_dead_deliveries",
            "Queue dead deliveries again, the oldest first",
            module.revive,
            answers={200: Revived},
            scope="write",
        ),
    )
