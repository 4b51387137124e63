"""Finds any id: its current state in each module, related ids, and its history.

The search reads the modules' state in Redis, then the journal from its newest entry backwards, then
the lake for older events. It changes nothing. Related ids follow from how modules are connected: a
message's id is the externalId of its transaction and the id of its request, and a reply's message
id in pickup is derived from the reply's id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.conversations.service import ConversationService
from angarium.conversations.views import view_message
from angarium.dispatch.message_ids import is_message_id
from angarium.dispatch.service import DispatchService
from angarium.pickup.model import DEFAULT_TENANT, queue_name
from angarium.pickup.store import PickupStore
from angarium.routing.service import RoutingService
from angarium.runtime import keys
from angarium.runtime.application import Application
from angarium.runtime.errors import AngariumError, InputInvalid, NotFound
from angarium.runtime.http_api import HttpApi, Operation, Parameter, reply
from angarium.runtime.journal import EntryUnreadable, Event, decode_entry
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.runtime.trace import Trace, read_traceparent, trace_in_payload, trace_of_id
from angarium.server.reply_to_pickup import reply_message_id
from angarium.transactions.model import OWNER_DEFAULT
from angarium.transactions.service import TransactionsService

ID_CHARS_MAX = 512
ENTRIES_PER_READ = 500
# Each costs a search of the lake's tables.
LAKE_IDS_MAX = 20
# Passes over the journal, each with the related ids of the pass before.
ROUNDS = 3


class HistoryEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    at_ms: int
    module: str
    event: str
    subject: str
    source: str
    actor: str = ""
    key: str | None = None
    owner: str | None = None
    pipeline: str | None = None
    node: str | None = None
    attempt: int | None = None
    status: str | None = None
    detail: str | None = None


class ModuleState(msgspec.Struct, frozen=True):
    """The current state of the id in a module."""

    module: str
    kind: str
    state: Any


class Related(msgspec.Struct, frozen=True):
    kind: str
    id: str


class SearchAnswer(msgspec.Struct, frozen=True):
    """`complete`: the history reaches back to the first event.

    `trace_id` is the W3C Trace Context id of its spans at a collector.
    """

    id: str
    trace_id: str | None
    found: list[ModuleState]
    related: list[Related]
    history: list[HistoryEvent]
    lake: str
    complete: bool


LakeHistory = Callable[[str], Awaitable[Iterable[Any] | None]]
"""Events of an id from the lake; None when the lake never ran."""


class Search:
    def __init__(self, runtime: Runtime, lake: LakeHistory | None = None) -> None:
        settings = runtime.settings
        self._runtime = runtime
        self._lake = lake
        self._limits = settings.limits
        self._dispatch = DispatchService(runtime)
        self._routing = runtime.store(RoutingService)
        self._conversations = ConversationService(runtime)
        self._pickup = runtime.store(PickupStore)
        self._transactions = TransactionsService(runtime)

    async def close(self) -> None:
        await self._transactions.close()

    async def search(self, id: str) -> SearchAnswer:
        if not 0 < len(id) <= ID_CHARS_MAX or not id.isprintable():
            raise InputInvalid(f"an id has 1 to {ID_CHARS_MAX} printable letters")
        found = [each async for each in self._states(id)]
        related = _RelatedIds(
            id, self._runtime.settings.prefix, self._limits.search_related_ids_max
        )
        for each in found:
            related.learn_state(each)
        history, complete = await self._journal(related)
        lake, from_lake = await self._from_lake(related)
        known = {(each.at_ms, each.module, each.event, each.subject) for each in history}
        history += [e for e in from_lake if (e.at_ms, e.module, e.event, e.subject) not in known]
        # The sort is stable: events of one millisecond keep the journal's order.
        history.sort(key=lambda each: each.at_ms)
        if not found and not history:
            raise NotFound(f"no module, no journal and no lake knows {id!r}")
        trace = await self._trace(id, found, related, history)
        return SearchAnswer(
            id,
            trace,
            found,
            related.listed(),
            history[: self._limits.search_events_max],
            lake,
            complete or lake == "joined",
        )

    async def _trace(
        self, id: str, found: list[ModuleState], related: _RelatedIds, history: list[HistoryEvent]
    ) -> str | None:
        """The trace stored by a module, or else the trace derived from the message's id."""
        ids = related.of("message", "message or request") or [id]
        if len(ids) > 1:
            return None  # a conversation: each of its messages has its own trace
        if not any(each.module == "transactions" for each in found):
            found = [*found, *[each async for each in self._started_by(ids[0])]]
        for each in found:
            trace = await self._stored_trace(each)
            if trace is not None:
                return trace.trace_id
        begun_here = is_message_id(ids[0].encode()) or any(
            each.subject == id and each.module in ("routing", "pickup") for each in history
        )
        own = trace_of_id(ids[0]) if begun_here else None
        return None if own is None else own.trace_id

    async def _stored_trace(self, found: ModuleState) -> Trace | None:
        """The trace stored with a module's state."""
        if found.module == "transactions":
            metadata = bytes(found.state.metadata)
            return trace_in_payload(metadata) or trace_of_id(found.state.id)
        if found.kind in ("request", "reply"):
            return read_traceparent(found.state.get("corr", ""))
        if found.kind != "message":
            return None
        with contextlib.suppress(NotFound):
            payload = await self._dispatch.messages.payload(found.state.message_id)
            return trace_in_payload(payload.payload.encode())
        return None

    async def _started_by(self, id: str) -> AsyncIterator[ModuleState]:
        with contextlib.suppress(NotFound, InputInvalid):
            yield ModuleState("transactions", "transaction", await self._external(id))

    # Redis

    async def _states(self, id: str) -> AsyncIterator[ModuleState]:
        for module, kind, ask in (
            ("dispatch", "message", self._message),
            ("transactions", "transaction", self._transaction),
            ("transactions", "transaction of this externalId", self._external),
            ("conversations", "conversation", self._conversation),
            ("conversations", "request", self._request),
            ("conversations", "reply", self._reply),
            ("pickup", "connection", self._connection),
            ("routing", "recipient key", self._recipient_key),
        ):
            try:
                state = await ask(id)
            except (NotFound, InputInvalid):
                continue  # the id is not of this kind
            if state is not None:
                yield ModuleState(module, kind, state)

    async def _message(self, id: str) -> Any:
        if not is_message_id(id.encode(errors="replace")):
            return None
        return await self._dispatch.messages.find(id)

    async def _transaction(self, id: str) -> Any:
        return (await self._transactions.get(id)).without_secrets()

    async def _external(self, id: str) -> Any:
        found = await self._transactions.get_by_external_id(OWNER_DEFAULT, id)
        return found.without_secrets()

    async def _conversation(self, id: str) -> Any:
        state = await self._conversations.show(id)
        return state if state.requests_total or state.replies_total else None

    async def _request(self, id: str) -> Any:
        found = await self._conversations.store.read_request(id, None)
        return None if found is None else view_message(found)

    async def _reply(self, id: str) -> Any:
        found = await self._conversations.store.read_reply(id, None)
        return None if found is None else view_message(found)

    async def _connection(self, id: str) -> Any:
        tenant, _, connection = id.rpartition(":")
        return await self._pickup.queue_status(queue_name(tenant or DEFAULT_TENANT, connection))

    async def _recipient_key(self, id: str) -> Any:
        return await self._routing.show(id)

    # The journal and the lake

    async def _journal(self, related: _RelatedIds) -> tuple[list[HistoryEvent], bool]:
        """Repeat the pass, up to ROUNDS times, while it finds new related ids."""
        history: list[HistoryEvent] = []
        complete = True
        for _ in range(ROUNDS):
            before = related.count
            history, complete = [], True
            for partition in range(self._runtime.settings.partitions):
                found, reached = await self._journal_of(partition, related)
                history += found
                complete = complete and reached
            if related.count == before:
                break
        return history, complete

    async def _journal_of(
        self, partition: int, related: _RelatedIds
    ) -> tuple[list[HistoryEvent], bool]:
        """Events oldest first, and whether the beginning of the journal was reached."""
        name = self._runtime.keyspace.name(keys.JOURNAL, partition)
        found: deque[HistoryEvent] = deque()
        until, looked, size = "+", 0, 0
        limits = self._limits
        while looked < limits.search_entries_max and size < limits.search_bytes_max:
            entries = await self._runtime.redis.call(
                "XREVRANGE", name, until, "-", "COUNT", ENTRIES_PER_READ, key=name
            )
            for entry_id, fields in entries:
                # Most entries contain none of the ids and need no decoding.
                if related.may_be_in(fields[-1]):
                    found.extendleft(reversed(_events_of(entry_id, fields, related)))
            looked += len(entries)
            size += sum(len(fields[-1]) for _, fields in entries)
            if len(entries) < ENTRIES_PER_READ:
                return list(found), True
            until = f"({entries[-1][0].decode()}"
        return list(found), False

    async def _from_lake(self, related: _RelatedIds) -> tuple[str, list[HistoryEvent]]:
        if self._lake is None:
            return "not installed", []
        found: list[HistoryEvent] = []
        for id in related.ids()[:LAKE_IDS_MAX]:
            try:
                events = await self._lake(id)
            except AngariumError as error:
                return f"not readable: {error}", found
            if events is None:
                return "never ran", []
            found += [_of_lake(each) for each in events]
        return "joined", found


class _RelatedIds:
    """The ids related to the one searched for, as they are found."""

    def __init__(self, id: str, prefix: str, count_max: int) -> None:
        self._count_max = count_max
        self._kinds: dict[str, str] = {id: "this"}
        self._prefix = prefix
        self._bytes: list[bytes] = [id.encode()]

    @property
    def count(self) -> int:
        return len(self._kinds)

    def concerns(self, module: str, event: Event) -> bool:
        key = event.key or ""
        # A queue's name begins with the tenant; a search names only the connection.
        tail = key.partition(":")[2] if module == "pickup" else ""
        return any(name in self._kinds for name in (event.subject, event.detail, key, tail) if name)

    def ids(self) -> list[str]:
        return list(self._kinds)

    def of(self, *kinds: str) -> list[str]:
        return [id for id, kind in self._kinds.items() if kind in kinds]

    def listed(self) -> list[Related]:
        return [Related(kind, id) for id, kind in self._kinds.items() if kind != "this"]

    def may_be_in(self, rows: bytes) -> bool:
        return any(each in rows for each in self._bytes)

    def learn_state(self, found: ModuleState) -> None:
        if found.module == "transactions":
            self._add("transaction", found.state.id)
            if found.state.external_id and is_message_id(found.state.external_id.encode()):
                self._add("message", found.state.external_id)

    def learn(self, module: str, event: Event) -> None:
        """Add the ids that an event connects with a known one."""
        if module == "conversations" and event.event == "accepted":
            self._add("reply", event.subject)
            self._add("message or request", event.detail)
            message_id = reply_message_id(self._prefix, event.key or "", event.subject)
            self._add("letter in pickup", message_id)
        elif module == "pickup" and event.event == "accepted" and event.detail:
            self._add("reply", event.detail)
            self._add("letter in pickup", event.subject)

    def _add(self, kind: str, id: str | None) -> None:
        if id and id not in self._kinds and len(self._kinds) < self._count_max:
            self._kinds[id] = kind
            self._bytes.append(msgspec.json.encode(id)[1:-1])


def _events_of(entry_id: bytes, fields: Any, related: _RelatedIds) -> list[HistoryEvent]:
    try:
        entry = decode_entry(entry_id, fields)
    except EntryUnreadable:
        return []
    found = []
    for event in entry.events:
        if not related.concerns(entry.module, event):
            continue
        related.learn(entry.module, event)
        found.append(
            HistoryEvent(
                entry.at_ms, entry.module, event.event, event.subject, "journal", entry.actor,
                event.key, event.owner, event.pipeline, event.node, event.attempt, event.status,
                event.detail,
            )
        )  # fmt: skip
    return found


def _of_lake(event: Any) -> HistoryEvent:
    return HistoryEvent(
        event.at_ms, event.module, event.event, event.subject, "lake", event.actor, event.key,
        event.owner, event.pipeline, event.node, event.attempt, event.status, event.detail,
    )  # fmt: skip


class _SearchService(Service):
    """Closes the search's database when the role stops."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("search", clock=runtime.clock)
        self.search = Search(runtime, lake_of(runtime))

    async def on_close(self) -> None:
        await self.search.close()


def lake_of(runtime: Runtime) -> LakeHistory | None:
    """The lake's lookup, or None if the lake is not installed."""
    try:
        from angarium.lake.lookup import Lookup
        from angarium.lake.tables import Lake
    except ImportError:
        return None
    lake = Lake.of(runtime.settings)
    lookup = Lookup(lake)

    async def history(id: str) -> Iterable[Any] | None:
        if not await asyncio.to_thread(lake.existing):
            return None
        return await lookup.history(id)

    return history


def http_api(runtime: Runtime, app: Application) -> HttpApi:
    searches = _SearchService(runtime)

    async def search(request: Request) -> Response:
        return reply(await searches.search.search(request.query_params.get("id", "")))

    operation = Operation(
        "GET",
        "/v1/search",
        "search",
        "The current state of any id in each module, related ids, and its history",
        search,
        answers={200: SearchAnswer},
        parameters=[
            Parameter("id", schema={"type": "string", "minLength": 1}, required=True),
        ],
    )
    return HttpApi("search", [operation], searches)
