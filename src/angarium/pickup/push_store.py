"""Scheduled push notifications in Redis. `PickupStore.pushes` is the instance."""

from __future__ import annotations

from typing import Any, NamedTuple

from angarium.pickup import keys
from angarium.pickup.settings import PickupSettings
from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition


class ClaimPushesArgs(NamedTuple):
    claim_ms: int
    pushes_max: int


class GrantArgs(NamedTuple):
    token: str
    interval_ms: int


class SettleArgs(NamedTuple):
    token: str
    push: bytes
    message_id: str
    outcome: str
    delay_ms: int
    tries: int


class ClaimedPush(NamedTuple):
    """`token` is hashed; `tries` were made before."""

    token: str
    tries: int
    push: bytes


class ClaimedPushes(NamedTuple):
    pushes: list[ClaimedPush]


class PushWaits(NamedTuple):
    remaining_ms: int


_PUSHES = {"pushes_due": keys.PICKUP_PUSHES_DUE, "pushes": keys.PICKUP_PUSHES}
CLAIM: Transition[Any] = Transition(
    "angarium.pickup",
    "claim_pushes",
    keys=_PUSHES,
    args=ClaimPushesArgs,
    replies={"claimed": ClaimedPushes},
)
GRANT: Transition[Any] = Transition(
    "angarium.pickup",
    "grant_push",
    keys={"pushed": keys.PICKUP_PUSHED},
    args=GrantArgs,
    replies={"granted": None, "wait": PushWaits},
)
SETTLE: Transition[Any] = Transition(
    "angarium.pickup",
    "settle_push",
    keys=_PUSHES,
    args=SettleArgs,
    replies={"settled": None, "later": None, "newer": None},
)


class PushStore:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._interval_ms = runtime.settings.group(PickupSettings).push_interval_ms

    async def claim(self, partition: int, claim_ms: int, pushes_max: int) -> list[ClaimedPush]:
        """Notifications that are due."""
        args = ClaimPushesArgs(claim_ms, pushes_max)
        found: list[ClaimedPush] = (
            await self._runtime.call(CLAIM, partition, args, durable=False)
        ).pushes
        return found

    async def grant(self, token: str) -> int:
        """0 if the token may get a notification now, else the milliseconds until it may."""
        partition = self._runtime.keyspace.partition_of(token)
        args = GrantArgs(token, self._interval_ms)
        reply = await self._runtime.call(GRANT, partition, args, durable=False)
        return max(1, reply.remaining_ms) if isinstance(reply, PushWaits) else 0

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
        args = SettleArgs(token, push, message_id, outcome, delay_ms, tries)
        return str(await self._runtime.call(SETTLE, partition, args))
