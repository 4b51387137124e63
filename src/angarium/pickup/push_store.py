"""Scheduled push notifications in Redis. `PickupStore.pushes` is the instance."""

from __future__ import annotations

from typing import Any

from angarium.pickup import keys
from angarium.pickup.queue_keys import QueueKeys
from angarium.pickup.settings import PickupSettings
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script, status_of

CLAIM, GRANT, SETTLE = (
    load_script("angarium.pickup", name) for name in ("claim_pushes", "grant_push", "settle_push")
)


class PushStore:
    def __init__(self, runtime: Runtime, names: QueueKeys) -> None:
        self._runtime = runtime
        self._keys = names
        self._push_keys = names.of_partition(keys.PICKUP_PUSHES_DUE, keys.PICKUP_PUSHES)
        self._interval_ms = runtime.settings.group(PickupSettings).push_interval_ms

    async def claim(
        self, partition: int, claim_ms: int, count_max: int
    ) -> list[tuple[str, int, bytes]]:
        """Hashed token, earlier tries and encoded push of notifications that are due."""
        names = self._push_keys(partition)
        args = [claim_ms, count_max]
        reply = await self._runtime.run(CLAIM, partition, names, args, durable=False)
        return [
            (reply[at].decode(), int(reply[at + 1]), reply[at + 2])
            for at in range(0, len(reply), 3)
        ]

    async def grant(self, token: str) -> int:
        """0 if the token may get a notification now, else the milliseconds until it may."""
        partition = self._keys.partition_of(token)
        names = [self._keys.name(keys.PICKUP_PUSHED, partition)]
        args: list[Any] = [token, self._interval_ms]
        reply = await self._runtime.run(GRANT, partition, names, args, durable=False)
        return 0 if status_of(reply) == "granted" else max(1, int(reply[1]))

    async def settle(
        self,
        partition: int,
        token: str,
        push: bytes,
        message_id: str,
        outcome: str,
        retry_ms: int | None = None,
        tries: int = 0,
    ) -> str:
        delay_ms = self._interval_ms if retry_ms is None else retry_ms
        args: list[Any] = [token, push, message_id, outcome, delay_ms, tries]
        return status_of(
            await self._runtime.run(SETTLE, partition, self._push_keys(partition), args)
        )
