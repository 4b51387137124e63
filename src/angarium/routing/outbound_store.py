"""OutboundItem messages in Redis: queued, leased to a deliverer, retried, made dead letters.

The deliverer decides whether an attempt succeeded; the store writes the outcome in one transition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from angarium.redis.subscription import Subscription
from angarium.routing import keys
from angarium.routing.errors import OutboundQueueFull
from angarium.routing.items import OutboundItem, encode_outbound, new_outbound, outbound_id
from angarium.routing.limits import RoutingLimits
from angarium.routing.store import ACAPY
from angarium.runtime.headers import check_headers
from angarium.runtime.ids import time_ordered_id
from angarium.runtime.limits import MIB
from angarium.runtime.runtime import Runtime
from angarium.runtime.trace import TRACEPARENT, read_traceparent
from angarium.runtime.transition import Transition
from angarium.runtime.urls import redacted

_PACKAGE = "angarium.routing"
_WAKE = {"wake": keys.OUTBOUND_WAKE}


class PushArgs(NamedTuple):
    layout_name: str
    partition: int
    outbound_messages_max: int


class PushItem(NamedTuple):
    message_id: str
    url: str
    message: bytes


class TakeOutboundArgs(NamedTuple):
    messages_max: int
    lease_ms: int
    bytes_max: int


class LeasedRow(NamedTuple):
    lease: bytes
    message: bytes


class LeasedRows(NamedTuple):
    rows: list[LeasedRow]


class SettleItem(NamedTuple):
    lease: bytes
    outcome: str
    foreign: bool
    message_id: str
    url: str
    attempt: int
    message: bytes
    delay_ms: int
    reason: str


class PartitionArgs(NamedTuple):
    partition: int


class DeadOutboundItem(NamedTuple):
    message_id: str
    entry: bytes


PUSH_OUTBOUND = Transition(
    _PACKAGE,
    "push_outbound",
    keys={"outbound": keys.OUTBOUND, "retries": keys.OUTBOUND_RETRY},
    channels=_WAKE,
    args=PushArgs,
    item=PushItem,
    replies={"queued": None, "full": None},
    admits=True,
)
TAKE_OUTBOUND: Transition[Any] = Transition(
    _PACKAGE,
    "take_outbound",
    keys={
        "outbound": keys.OUTBOUND,
        "retries": keys.OUTBOUND_RETRY,
        "taken": keys.OUTBOUND_TAKEN,
        "leases": keys.OUTBOUND_LOANS,
    },
    args=TakeOutboundArgs,
    replies={"taken": LeasedRows},
)
SETTLE_OUTBOUND = Transition(
    _PACKAGE,
    "settle_outbound",
    keys={
        "retries": keys.OUTBOUND_RETRY,
        "taken": keys.OUTBOUND_TAKEN,
        "leases": keys.OUTBOUND_LOANS,
        "dead": keys.OUTBOUND_DEAD,
    },
    item=SettleItem,
    replies={"settled": None, "gone": None},
)
REVIVE_OUTBOUND = Transition(
    _PACKAGE,
    "revive_outbound",
    keys={"outbound": keys.OUTBOUND, "dead": keys.OUTBOUND_DEAD},
    channels=_WAKE,
    args=PartitionArgs,
    item=DeadOutboundItem,
    replies={"revived": None, "unknown": None, "unreadable": None},
)

# Longer than a delivery takes: a WebSocket may use its time-out twice, and a message may wait for
# its host before.
LEASE_MS = 30_000
LEASE_TIMEOUTS = 3
# Of one call, unless the caller has space for less.
TAKE_BYTES_MAX = 8 * MIB
# Journal events carry the beginning of the URL as their key.
URL_CHARS_MAX = 200


@dataclass(frozen=True)
class DeliveryLease:
    partition: int
    number: bytes
    item: bytes


@dataclass(frozen=True)
class Settlement:
    """The end of a lease. `message` is the item for the retries or the dead letters."""

    lease: DeliveryLease
    outcome: str  # delivered, retried, dead or deferred
    name: str
    url: str
    attempt: int
    message: bytes
    foreign: bool = False
    delay_ms: int = 0
    reason: str = ""


class OutboundStore:
    def __init__(
        self,
        runtime: Runtime,
        layout: str,
        delivery_timeout_ms: int = 0,
        messages_max: int = RoutingLimits.outbound_messages_max,
    ) -> None:
        self._runtime = runtime
        self._lease_ms = max(LEASE_MS, LEASE_TIMEOUTS * delivery_timeout_ms)
        self._acapy = layout == ACAPY
        self.partitions = runtime.keyspace.partitions
        numbers = range(self.partitions)
        self._messages_max = messages_max
        args = [PushArgs(layout, each, messages_max) for each in numbers]
        self._push = [runtime.batch(PUSH_OUTBOUND, each) for each in args]
        self._settle = runtime.batch(SETTLE_OUTBOUND)

    def push(self, url: str, payload: bytes, headers: dict[str, str]) -> asyncio.Future[Any]:
        """Queue a message for delivery; the future gives `queued` or `full`.

        Raises HeaderRefused at once.
        """
        headers = check_headers(headers)
        message_id = "" if self._acapy else time_ordered_id().hex
        item = new_outbound(url, payload, headers, message_id)
        encoded = encode_outbound(item)
        partition = self._runtime.keyspace.partition_of(outbound_id(item))
        entry = PushItem(message_id, url_for_display(url), encoded)
        queued = self._push[partition].submit(partition, entry, None, len(encoded))
        if self._runtime.tracing is not None:
            carried = read_traceparent(headers.get(TRACEPARENT))
            self._runtime.tracing.when_queued(outbound_id(item), "routing send", queued, carried)
        return queued

    def queue_full(self) -> OutboundQueueFull:
        """The error of a message that was not queued because too many wait."""
        return OutboundQueueFull("outbound_messages_max", self._messages_max)

    async def take(
        self, partition: int, messages_max: int, bytes_max: int = TAKE_BYTES_MAX
    ) -> list[DeliveryLease]:
        """Lease due messages. The last one may exceed `bytes_max`."""
        args = TakeOutboundArgs(messages_max, self._lease_ms, bytes_max)
        reply = await self._runtime.call(TAKE_OUTBOUND, partition, args)
        return [DeliveryLease(partition, row.lease, row.message) for row in reply.rows]

    def settle(self, end: Settlement) -> asyncio.Future[Any]:
        """The future gives `settled`, or `gone` when the lease had expired and is taken."""
        item = SettleItem(
            end.lease.number,
            end.outcome,
            end.foreign,
            end.name,
            url_for_display(end.url),
            end.attempt,
            end.message,
            end.delay_ms,
            end.reason,
        )
        return self._settle.submit(end.lease.partition, item, None, len(end.message))

    async def revive(self, partition: int, letters: Sequence[tuple[str, bytes]]) -> list[str]:
        """Queue dead letters again: for each `revived`, `unknown` or `unreadable`."""
        items = [DeadOutboundItem(*each) for each in letters]
        args = PartitionArgs(partition)
        found: list[str]
        found = await self._runtime.call(REVIVE_OUTBOUND, partition, args, items)
        return found

    def hints(self) -> Subscription:
        return self._runtime.subscribe(self._runtime.keyspace.global_name(keys.OUTBOUND_WAKE))


def url_for_display(url: str) -> str:
    """The URL for the journal and the logs: without secrets, and shortened."""
    return (redacted(url) if "@" in url or "?" in url else url)[:URL_CHARS_MAX]


def is_foreign(item: OutboundItem) -> bool:
    """No `outbound_accepted` event exists yet: another program queued it, or it has no id."""
    return not item.id and item.failures == 0
