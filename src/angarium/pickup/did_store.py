"""Queues and live sessions by recipient DID in Redis. `PickupStore.dids` is the instance.

A recipient is `tenant:did`. The queues that name it may be in any partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

from angarium.pickup import keys
from angarium.pickup.message_transitions import PACKAGE, OneQueue
from angarium.pickup.settings import PickupSettings
from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition

# Queues of one recipient in one partition; a recipient usually has one.
QUEUES_MAX = 1_000
SWEEP_MEMBERS = 500


class GraceArgs(NamedTuple):
    grace_ms: int


class DidSession(NamedTuple):
    recipient: str
    open: bool


class SweepDidsArgs(NamedTuple):
    after: str
    members_max: int


class SweptDids(NamedTuple):
    """`after` continues the sweep; it is empty at the end of the index."""

    after: str


BEGIN_GRACE = Transition(
    PACKAGE,
    "begin_grace",
    keys={"gateways": keys.PICKUP_GATEWAYS, "due": keys.PICKUP_DUE},
    args=GraceArgs,
    item=OneQueue,
    item_keys=keys.QUEUE,
    replies={"begun": None, "live": None},
)
NAME_DID_SESSION = Transition(
    PACKAGE,
    "name_did_session",
    keys={"did_sessions": keys.PICKUP_DID_SESSIONS},
    item=DidSession,
    replies={"named": None, "removed": None, "other": None},
)
SWEEP_DIDS: Transition[Any] = Transition(
    PACKAGE,
    "sweep_dids",
    keys={
        "gateways": keys.PICKUP_GATEWAYS,
        "dids": keys.PICKUP_DIDS,
        "did_sessions": keys.PICKUP_DID_SESSIONS,
    },
    stems={"meta": keys.PICKUP_QUEUE},
    args=SweepDidsArgs,
    replies={"swept": SweptDids},
)


class DidStore:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._partitions = range(runtime.settings.partitions)
        self._names = runtime.batch(NAME_DID_SESSION)
        grace_ms = runtime.settings.group(PickupSettings).grace_ms
        self._graces = runtime.batch(BEGIN_GRACE, GraceArgs(grace_ms))

    async def queues_of(self, recipient: str) -> list[str]:
        """Queues of connections with messages that name the recipient, and perhaps some without."""
        found = await asyncio.gather(
            *(self._queues_in(each, recipient) for each in self._partitions)
        )
        return [queue for some in found for queue in some]

    async def _queues_in(self, partition: int, recipient: str) -> list[str]:
        name = self._runtime.keyspace.name(keys.PICKUP_DIDS, partition)
        # A DID has no space, and "!" follows it.
        members = await self._runtime.redis.call(
            "ZRANGEBYLEX",
            name,
            f"[{recipient} ",
            f"({recipient}!",
            "LIMIT",
            0,
            QUEUES_MAX,
            key=name,
        )
        return [member.decode().partition(" ")[2] for member in members]

    async def name_session(self, recipient: str, *, open: bool) -> None:
        """Messages that name the recipient are announced to this gateway, or no longer."""
        item = DidSession(recipient, open)
        await asyncio.gather(*(self._names.submit(each, item) for each in self._partitions))

    async def begin_grace(self, queues: Iterable[str]) -> None:
        """Sent messages are pending again after the grace period, and nobody gets newer ones
        before; queues with a live session of their own do not change."""
        partition_of = self._runtime.keyspace.partition_of
        await asyncio.gather(
            *(self._graces.submit(partition_of(queue), OneQueue(queue), queue) for queue in queues)
        )

    async def sweep(self, partition: int, after: str) -> str:
        """Remove what is left of ended queues and gateways; where the next call continues."""
        args = SweepDidsArgs(after, SWEEP_MEMBERS)
        return str((await self._runtime.call(SWEEP_DIDS, partition, args, durable=False)).after)
