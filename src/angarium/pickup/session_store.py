"""Live sessions and the leases of gateways in Redis. `PickupStore.sessions` is the instance."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from angarium.pickup import keys
from angarium.pickup.message_transitions import OneQueue
from angarium.pickup.settings import PickupSettings
from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition


class GatewayArgs(NamedTuple):
    gateway: str


class RenewArgs(NamedTuple):
    gateway: str
    lease_ms: int


class OpenArgs(NamedTuple):
    gateway: str
    grace_ms: int
    hint_channel: str


class CloseArgs(NamedTuple):
    grace_ms: int
    hint_channel: str


class SessionToOpen(NamedTuple):
    """`restored`: the term of a session to restore, or ''. `asked_ms`: when the client asked."""

    queue: str
    session: str
    socket: str
    restored: str
    asked_ms: str


class SessionToClose(NamedTuple):
    queue: str
    gateway: str
    socket: str
    session: str
    term: str
    dead: bool


class SessionOpened(NamedTuple):
    term: str


class SessionKept(SessionOpened):
    """It was open already."""

    __slots__ = ()


class SessionStatus(NamedTuple):
    session: str
    gateway: str
    term: str
    pending: bool


class GatewayRenewed(NamedTuple):
    now_ms: int


class GatewayRevived(GatewayRenewed):
    """Its lease had run out, or it is new."""

    __slots__ = ()


OPEN = Transition(
    "angarium.pickup",
    "open_session",
    keys={
        "gateways": keys.PICKUP_GATEWAYS,
        "due": keys.PICKUP_DUE,
        "sessions": keys.PICKUP_GATEWAY_SESSIONS,
    },
    args=OpenArgs,
    item=SessionToOpen,
    item_keys=keys.QUEUE,
    replies={
        "opened": SessionOpened, "kept": SessionKept, "taken": None, "late": None, "no_lease": None
    },
)  # fmt: skip
CLOSE = Transition(
    "angarium.pickup",
    "close_session",
    keys={"gateways": keys.PICKUP_GATEWAYS, "due": keys.PICKUP_DUE},
    args=CloseArgs,
    item=SessionToClose,
    item_keys={**keys.QUEUE, "sessions": keys.PICKUP_GATEWAY_SESSIONS},
    replies={"closed": None, "other": None, "none": None},
)
READ = Transition(
    "angarium.pickup",
    "read_sessions",
    keys={"gateways": keys.PICKUP_GATEWAYS},
    item=OneQueue,
    item_keys={"meta": keys.PICKUP_QUEUE, "pending": keys.PICKUP_PENDING},
    replies={"live": SessionStatus, "offline": None},
)
RENEW: Transition[Any] = Transition(
    "angarium.pickup",
    "renew_gateway",
    keys={"gateways": keys.PICKUP_GATEWAYS},
    args=RenewArgs,
    replies={"renewed": GatewayRenewed, "revived": GatewayRevived, "ended": None},
)
FORGET: Transition[Any] = Transition(
    "angarium.pickup",
    "forget_gateway",
    keys={"gateways": keys.PICKUP_GATEWAYS, "sessions": keys.PICKUP_GATEWAY_SESSIONS},
    args=GatewayArgs,
    replies={"forgotten": None, "kept": None},
)


class SessionStore:
    def __init__(self, runtime: Runtime, hint_channel: str) -> None:
        settings = runtime.settings.group(PickupSettings)
        self._runtime = runtime
        self._name = runtime.keyspace.name
        self._partition_of = runtime.keyspace.partition_of
        self._gateway = runtime.actor
        self._lease_ms = settings.lease_ms
        # The last two renewals of each partition, by Redis' clock.
        self._renewed_ms: dict[int, tuple[int, int]] = {}
        self._reads = runtime.batch(READ)
        self._opens = runtime.batch(OPEN, OpenArgs(self._gateway, settings.grace_ms, hint_channel))
        self._closes = runtime.batch(CLOSE, CloseArgs(settings.grace_ms, hint_channel))

    def open(
        self, queue: str, session: str, socket: str, restored: str = "", *, asked_ms: int | str = ""
    ) -> asyncio.Future[Any]:
        item = SessionToOpen(queue, session, socket, restored, str(asked_ms))
        return self._opens.submit(self._partition_of(queue), item, queue)

    def close(
        self,
        queue: str,
        *,
        gateway: str,
        socket: str = "",
        session: str = "",
        term: str = "",
        dead: bool = False,
    ) -> asyncio.Future[Any]:
        item = SessionToClose(queue, gateway, socket, session, term, dead)
        return self._closes.submit(self._partition_of(queue), item, queue)

    def read(self, queue: str) -> asyncio.Future[Any]:
        """A SessionStatus, or 'offline'."""
        return self._reads.submit(self._partition_of(queue), OneQueue(queue), None)

    async def renew_gateway(self, partition: int) -> bool:
        """Whether the lease had run out, or is new."""
        args = RenewArgs(self._gateway, self._lease_ms)
        reply = await self._runtime.call(RENEW, partition, args, durable=False)
        before_ms = self._renewed_ms.get(partition, (0, reply.now_ms))[1]
        self._renewed_ms[partition] = (before_ms, reply.now_ms)
        return isinstance(reply, GatewayRevived)

    async def end_gateway(self, partition: int) -> None:
        await self._runtime.call(RENEW, partition, RenewArgs(self._gateway, 0), durable=False)

    def asked_ms(self, partition: int) -> int:
        """A time by Redis' clock that is earlier than any request this process reads now.

        It is the renewal before the last one: a process that was stopped may renew its lease
        before it reads the requests that arrived meanwhile.
        """
        return self._renewed_ms.get(partition, (0, 0))[0]

    async def queues_of(self, partition: int, gateway: str, count_max: int) -> list[str]:
        """Some of the queues whose live session is at the gateway."""
        name = self._name(keys.PICKUP_GATEWAY_SESSIONS, partition, gateway)
        reply = await self._runtime.redis.call("SRANDMEMBER", name, count_max, key=name)
        return [each.decode() for each in reply]

    async def forget_gateway(self, partition: int, gateway: str) -> str:
        return str(await self._runtime.call(FORGET, partition, GatewayArgs(gateway)))
