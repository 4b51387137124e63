"""Reads pages of recipient keys and of dead letters, and the queue lengths, for people.

A page costs the same whether there are ten keys or a million.
"""

from __future__ import annotations

from dataclasses import dataclass

from angarium.routing import keys
from angarium.runtime.runtime import Runtime


@dataclass(frozen=True)
class RoutingLengths:
    """Sums over all partitions. `keys_with_mail` have messages that are not handled yet."""

    keys: int
    keys_with_mail: int
    outbound: int
    retrying: int
    in_hand: int
    dead_inbound: int
    dead_outbound: int


class RoutingListing:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._name = runtime.keyspace.name
        self.partitions = runtime.settings.partitions

    async def owned(self, partition: int, cursor: int, count: int) -> tuple[list[str], int]:
        """One page of keys that have an owner, and the next cursor; 0 after the last page.

        `count` is only a hint for Redis; a small map comes whole. A key may come twice if the map
        grows between two pages.
        """
        name = self._name(keys.RECIP_KEY_UID, partition)
        after, found = await self._runtime.redis.call(
            "HSCAN", name, cursor, "COUNT", count, key=name
        )
        return [each.decode(errors="replace") for each in found[::2]], int(after)

    async def dead_inbound(self, messages_max: int) -> list[bytes]:
        """The oldest inbound dead letters of each partition, as stored in Redis."""
        found: list[bytes] = []
        for partition in range(self.partitions):
            name = self._name(keys.INBOUND_DEAD, partition)
            found += await self._runtime.redis.call("LRANGE", name, 0, messages_max - 1, key=name)
        return found[:messages_max]

    async def lengths(self) -> RoutingLengths:
        sums = [0] * 7
        for partition in range(self.partitions):
            name = self._name
            replies = await self._runtime.redis.execute(
                [
                    ("HLEN", name(keys.RECIP_KEY_UID, partition)),
                    ("ZCARD", name(keys.MAIL, partition)),
                    ("LLEN", name(keys.OUTBOUND, partition)),
                    ("ZCARD", name(keys.OUTBOUND_RETRY, partition)),
                    ("ZCARD", name(keys.OUTBOUND_LOANS, partition)),
                    ("LLEN", name(keys.INBOUND_DEAD, partition)),
                    ("LLEN", name(keys.OUTBOUND_DEAD, partition)),
                ],
                key=name(keys.MAIL, partition),
                repeatable=True,
            )
            sums = [one + int(other) for one, other in zip(sums, replies, strict=True)]
        return RoutingLengths(*sums)
