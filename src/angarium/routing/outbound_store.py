"""OutboundItem messages in Redis: queued, leased to a deliverer, retried, made dead letters.

The deliverer decides whether an attempt succeeded; the store writes the outcome in one transition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from angarium.redis.connection import Argument
from angarium.redis.subscription import Subscription
from angarium.routing import keys
from angarium.routing.items import OutboundItem, encode_outbound, new_outbound, outbound_id
from angarium.routing.store import ACAPY
from angarium.runtime.headers import check_headers
from angarium.runtime.ids import time_ordered_id
from angarium.runtime.limits import MIB
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script, status_of
from angarium.runtime.trace import TRACEPARENT, read_traceparent
from angarium.runtime.urls import redacted

_PACKAGE = "angarium.routing"
PUSH_OUTBOUND = load_script(_PACKAGE, "push_outbound")
TAKE_OUTBOUND = load_script(_PACKAGE, "take_outbound")
SETTLE_OUTBOUND = load_script(_PACKAGE, "settle_outbound")
REVIVE_OUTBOUND = load_script(_PACKAGE, "revive_outbound")
REVIVE_ONE_OUTBOUND = load_script(_PACKAGE, "revive_one_outbound")

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
    def __init__(self, runtime: Runtime, layout: str, delivery_timeout_ms: int = 0) -> None:
        self._runtime = runtime
        self._lease_ms = max(LEASE_MS, LEASE_TIMEOUTS * delivery_timeout_ms)
        self._acapy = layout == ACAPY
        self.partitions = runtime.keyspace.partitions
        self._wake = runtime.keyspace.global_name(keys.OUTBOUND_WAKE)
        name = runtime.keyspace.name
        self._push = [
            runtime.batched(
                PUSH_OUTBOUND, lambda p: [name(keys.OUTBOUND, p)], (layout, self._wake, number)
            )
            for number in range(self.partitions)
        ]
        self._settle = runtime.batched(SETTLE_OUTBOUND, self._settle_keys)

    def push(self, url: str, payload: bytes, headers: dict[str, str]) -> asyncio.Future[Any]:
        """Queue a message for delivery; the future gives `queued`. Raises HeaderRefused at once."""
        headers = check_headers(headers)
        message_id = "" if self._acapy else time_ordered_id().hex
        item = new_outbound(url, payload, headers, message_id)
        encoded = encode_outbound(item)
        partition = self._runtime.keyspace.partition_of(outbound_id(item))
        entry = ((), (message_id, url_for_display(url), encoded))
        queued = self._push[partition].submit(partition, entry, None, len(encoded))
        if self._runtime.tracing is not None:
            carried = read_traceparent(headers.get(TRACEPARENT))
            self._runtime.tracing.when_queued(outbound_id(item), "routing send", queued, carried)
        return queued

    async def take(
        self, partition: int, messages_max: int, bytes_max: int = TAKE_BYTES_MAX
    ) -> list[DeliveryLease]:
        """Lease due messages. The last one may exceed `bytes_max`."""
        name = self._runtime.keyspace.name
        names = [
            name(keys.OUTBOUND, partition),
            name(keys.OUTBOUND_RETRY, partition),
            name(keys.OUTBOUND_TAKEN, partition),
            name(keys.OUTBOUND_LOANS, partition),
        ]
        args = (messages_max, self._lease_ms, bytes_max)
        reply = await self._runtime.run(TAKE_OUTBOUND, partition, names, args)
        return [
            DeliveryLease(partition, reply[at], reply[at + 1]) for at in range(0, len(reply), 2)
        ]

    def settle(self, end: Settlement) -> asyncio.Future[Any]:
        """The future gives `settled`, or `gone` when the lease had expired and is taken."""
        args: tuple[Argument, ...] = (
            end.lease.number,
            end.outcome + ("+" if end.foreign else ""),
            end.name,
            url_for_display(end.url),
            end.attempt,
            end.message,
            end.delay_ms,
            end.reason,
        )
        return self._settle.submit(end.lease.partition, ((), args), None, len(end.message))

    async def dead_letters(self, messages_max: int) -> list[bytes]:
        """The oldest dead letters of each partition, as stored in Redis."""
        found: list[bytes] = []
        for partition in range(self.partitions):
            name = self._runtime.keyspace.name(keys.OUTBOUND_DEAD, partition)
            found += await self._runtime.redis.call("LRANGE", name, 0, messages_max - 1, key=name)
        return found[:messages_max]

    async def revive(self, messages_max: int) -> int:
        """Queue dead letters again; returns how many."""
        revived = 0
        for partition in range(self.partitions):
            names = [
                self._runtime.keyspace.name(key, partition)
                for key in (keys.OUTBOUND, keys.OUTBOUND_DEAD)
            ]
            args = (self._wake, partition, messages_max - revived)
            reply = await self._runtime.run(REVIVE_OUTBOUND, partition, names, args)
            revived += int(reply[1])
        return revived

    async def revive_one(self, message_id: str, messages_max: int) -> str:
        """Returns 'revived', 'unknown' or 'unreadable'. Searches the oldest of each partition."""
        status = "unknown"
        for partition in range(self.partitions):
            names = [
                self._runtime.keyspace.name(key, partition)
                for key in (keys.OUTBOUND, keys.OUTBOUND_DEAD)
            ]
            args = (self._wake, partition, message_id, messages_max)
            reply = await self._runtime.run(REVIVE_ONE_OUTBOUND, partition, names, args)
            status = status_of(reply)
            if status != "unknown":
                break
        return status

    def hints(self) -> Subscription:
        return self._runtime.redis.subscribe(self._wake)

    def _settle_keys(self, partition: int) -> Sequence[str]:
        return [
            self._runtime.keyspace.name(key, partition)
            for key in (
                keys.OUTBOUND_RETRY,
                keys.OUTBOUND_TAKEN,
                keys.OUTBOUND_LOANS,
                keys.OUTBOUND_DEAD,
            )
        ]


def url_for_display(url: str) -> str:
    """The URL for the journal and the logs: without secrets, and shortened."""
    return (redacted(url) if "@" in url or "?" in url else url)[:URL_CHARS_MAX]


def is_foreign(item: OutboundItem) -> bool:
    """No `outbound_accepted` event exists yet: another program queued it, or it has no id."""
    return not item.id and item.failures == 0
