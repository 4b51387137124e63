"""Scheduled push notifications in Redis. `PickupStore.pushes` is the instance."""

from __future__ import annotations

from typing import Any, NamedTuple

from angarium.pickup import keys
from angarium.pickup.settings import PickupSettings
from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition


class ListPushesArgs(NamedTuple):
    pushes_max: int


class DuePushes(NamedTuple):
    """Each is a hashed token, a space and its queue."""

    members: list[str]


class ClaimPushesArgs(NamedTuple):
    claim_ms: int


class PushToClaim(NamedTuple):
    """`token` is hashed."""

    queue: str
    token: str


class GrantArgs(NamedTuple):
    token: str
    interval_ms: int


class SettleArgs(NamedTuple):
    queue: str
    token: str
    claimed_ms: int
    message_id: str
    outcome: str
    delay_ms: int
    tries: int


class PushClaim(NamedTuple):
    """`tries` were made before; `message_id` is the newest message that is not collected."""

    tries: int
    message_id: str
    claimed_ms: int
    push: bytes


class ClaimedPush(NamedTuple):
    queue: str
    token: str
    claim: PushClaim


class PushWaits(NamedTuple):
    remaining_ms: int


_TOKENS = {"meta": keys.PICKUP_QUEUE, "tokens": keys.PICKUP_TOKENS}
LIST_PUSHES: Transition[Any] = Transition(
    "angarium.pickup",
    "list_pushes",
    keys={"pushes_due": keys.PICKUP_PUSHES_DUE},
    args=ListPushesArgs,
    replies={"due": DuePushes},
)
CLAIM = Transition(
    "angarium.pickup",
    "claim_pushes",
    keys={"pushes_due": keys.PICKUP_PUSHES_DUE},
    args=ClaimPushesArgs,
    item=PushToClaim,
    item_keys=_TOKENS,
    replies={"claimed": PushClaim, "collected": None, "not_due": None},
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
    keys={"pushes_due": keys.PICKUP_PUSHES_DUE, **_TOKENS},
    args=SettleArgs,
    replies={"settled": None, "later": None, "newer": None},
)


class PushStore:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._interval_ms = runtime.settings.group(PickupSettings).push_interval_ms

    async def claim(self, partition: int, claim_ms: int, pushes_max: int) -> list[ClaimedPush]:
        """Notifications that are due, at most `pushes_max`."""
        due = await self._runtime.call(LIST_PUSHES, partition, ListPushesArgs(pushes_max))
        parts = [each.partition(" ") for each in due.members]
        items = [PushToClaim(queue, token) for token, _, queue in parts]
        if not items:
            return []
        args = ClaimPushesArgs(claim_ms)
        replies = await self._runtime.call(CLAIM, partition, args, items, durable=False)
        return [
            ClaimedPush(item.queue, item.token, reply)
            for item, reply in zip(items, replies, strict=True)
            if isinstance(reply, PushClaim)
        ]

    async def grant(self, token: str) -> int:
        """0 if the token may get a notification now, else the milliseconds until it may."""
        partition = self._runtime.keyspace.partition_of(token)
        args = GrantArgs(token, self._interval_ms)
        reply = await self._runtime.call(GRANT, partition, args, durable=False)
        return max(1, reply.remaining_ms) if isinstance(reply, PushWaits) else 0

    async def settle(self, pushed: ClaimedPush, outcome: str, retry_ms: int | None = None) -> str:
        """'settled', 'later', or 'newer': messages that arrived after the claim wait."""
        delay_ms = self._interval_ms if retry_ms is None else retry_ms
        queue, token, (tries, message_id, claimed_ms, _) = pushed
        args = SettleArgs(queue, token, claimed_ms, message_id, outcome, delay_ms, tries)
        partition = self._runtime.keyspace.partition_of(queue)
        return str(await self._runtime.call(SETTLE, partition, args))
