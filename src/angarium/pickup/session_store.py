"""Live sessions and the leases of gateways in Redis. `PickupStore.sessions` is the instance."""

from __future__ import annotations

import asyncio
from typing import Any

from angarium.pickup import keys
from angarium.pickup.queue_keys import QueueKeys
from angarium.pickup.settings import PickupSettings
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script, status_of

OPEN, CLOSE, READ, RENEW, FORGET = (
    load_script("angarium.pickup", name)
    for name in (
        "open_session", "close_session", "read_sessions", "renew_gateway", "forget_gateway",
    )
)  # fmt: skip


class SessionStore:
    def __init__(self, runtime: Runtime, names: QueueKeys) -> None:
        settings = runtime.settings.group(PickupSettings)
        self._runtime = runtime
        self._keys = names
        self._gateway = runtime.actor
        self._lease_ms = settings.lease_ms
        # The last two renewals of each partition, by Redis' clock.
        self._renewed_ms: dict[int, tuple[int, int]] = {}
        arguments = (settings.grace_ms, names.hint_channel)
        self._reads = runtime.batched(READ, names.of_partition(keys.PICKUP_GATEWAYS))
        self._opens = runtime.batched(OPEN, self._open_keys, arguments)
        self._closes = runtime.batched(
            CLOSE, names.of_partition(keys.PICKUP_GATEWAYS, keys.PICKUP_DUE), arguments
        )

    def open(
        self, queue: str, session: str, socket: str, restored: str = "", *, asked_ms: int | str = ""
    ) -> asyncio.Future[Any]:
        item = (self._keys.of(queue), (queue, session, socket, restored, asked_ms))
        return self._opens.submit(self._keys.partition_of(queue), item, queue)

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
        partition = self._keys.partition_of(queue)
        sessions = self._keys.name(keys.PICKUP_GATEWAY_SESSIONS, partition, gateway)
        args = (queue, gateway, socket, session, term, 1 if dead else "")
        return self._closes.submit(partition, ((*self._keys.of(queue), sessions), args), queue)

    def read(self, queue: str) -> asyncio.Future[Any]:
        return self._reads.submit(self._keys.partition_of(queue), (self._keys.of(queue), ()), None)

    async def renew_gateway(self, partition: int, *, end: bool = False) -> str:
        names = [self._keys.name(keys.PICKUP_GATEWAYS, partition)]
        args: list[Any] = [self._gateway, 0 if end else self._lease_ms]
        reply = await self._runtime.run(RENEW, partition, names, args, durable=False)
        if not end:
            before_ms = self._renewed_ms.get(partition, (0, int(reply[1])))[1]
            self._renewed_ms[partition] = (before_ms, int(reply[1]))
        return status_of(reply)

    def asked_ms(self, partition: int) -> int:
        """A time by Redis' clock that is earlier than any request this process reads now.

        It is the renewal before the last one: a process that was stopped may renew its lease
        before it reads the requests that arrived meanwhile.
        """
        return self._renewed_ms.get(partition, (0, 0))[0]

    async def queues_of(self, partition: int, gateway: str, count_max: int) -> list[str]:
        """Some of the queues whose live session is at the gateway."""
        name = self._keys.name(keys.PICKUP_GATEWAY_SESSIONS, partition, gateway)
        reply = await self._runtime.redis.call("SRANDMEMBER", name, count_max, key=name)
        return [each.decode() for each in reply]

    async def forget_gateway(self, partition: int, gateway: str) -> str:
        names = [
            self._keys.name(keys.PICKUP_GATEWAYS, partition),
            self._keys.name(keys.PICKUP_GATEWAY_SESSIONS, partition, gateway),
        ]
        return status_of(await self._runtime.run(FORGET, partition, names, [gateway]))

    def _open_keys(self, partition: int) -> list[str]:
        shared = self._keys.of_partition(keys.PICKUP_GATEWAYS, keys.PICKUP_DUE)(partition)
        return [*shared, self._keys.name(keys.PICKUP_GATEWAY_SESSIONS, partition, self._gateway)]
