"""A cluster: slots spread over nodes. The map is read from any node and follows redirections."""

from __future__ import annotations

import asyncio
import binascii
import re
from collections.abc import Sequence
from typing import Any

from angarium.redis.address import Address
from angarium.redis.connection import ReplyError
from angarium.redis.errors import OutcomeUnknown, RedisUnavailable, ServerUnsuitable
from angarium.redis.node import Node, ServerUse
from angarium.redis.topology import QUESTION_TIMEOUT_S, always_at

SLOTS = 16384
# A refresh asks one server for the whole map; asking more often than this during a failover
# would load the very servers that are busy electing.
REFRESH_INTERVAL_S = 0.1
PORT_MAX = 65_535
_ASK = re.compile(r"ASK \d+ (?P<host>\S+):(?P<port>\d{1,5})", re.ASCII)


class Cluster:
    """Slots spread over nodes; the map is read from any node and follows redirections."""

    clustered = True

    def __init__(self, seeds: Sequence[Address], use: ServerUse) -> None:
        self._seeds = tuple(seeds)
        self._use = use
        self._nodes: dict[tuple[str, int], Node] = {}
        self._owners: list[Node | None] = [None] * SLOTS
        self._refreshing = asyncio.Lock()
        self._refreshed_at = float("-inf")
        self._told_by: Address | None = None

    def known(self, key: str | bytes | None) -> Node | None:
        if key is None:
            return next((node for node in self._owners if node is not None), None)
        return self._owners[slot_of(key)]

    async def node_of(self, key: str | bytes | None) -> Node:
        owner = self.known(key)
        if owner is None:
            await self._refresh()
            owner = self.known(key)
        if owner is None:
            slot = slot_of(key) if key is not None else None
            raise RedisUnavailable(f"no cluster node serves slot {slot} at the moment")
        return owner

    async def nodes(self) -> Sequence[Node]:
        await self.node_of(None)
        return tuple(dict.fromkeys(node for node in self._owners if node is not None))

    async def redirected(self, error: str) -> Node | None:
        asked = _ASK.fullmatch(error)
        if asked is not None and int(asked["port"]) <= PORT_MAX:
            return self._node_at(Address(asked["host"], int(asked["port"])))
        await self._refresh()
        return None

    async def failed(self) -> None:
        await self._refresh()

    async def close(self) -> None:
        for node in self._nodes.values():
            await node.close()

    def _node_at(self, address: Address) -> Node:
        place = (address.host, address.port)
        if place not in self._nodes:
            self._nodes[place] = Node(always_at(address), self._use)
        return self._nodes[place]

    async def _refresh(self) -> None:
        async with self._refreshing:
            loop = asyncio.get_running_loop()
            if loop.time() - self._refreshed_at < REFRESH_INTERVAL_S:
                return
            known = [Address(host, port) for host, port in self._nodes]
            addresses = list(dict.fromkeys((*known, *self._seeds)))
            # A node that was cut off from the others still answers, with an old map: whoever
            # told the last one is asked last.
            addresses.sort(key=lambda address: address == self._told_by)
            problems = []
            for address in addresses:
                try:
                    owners = self._owners_of(address, await self._ask(address))
                except (RedisUnavailable, OutcomeUnknown) as error:
                    problems.append(str(error))
                    continue
                await self._adopt(address, owners)
                self._told_by = address
                self._refreshed_at = loop.time()
                return
            raise RedisUnavailable(f"no cluster node answers: {'; '.join(problems)}")

    async def _ask(self, address: Address) -> Any:
        connection = await self._node_at(address).connection()
        (reply,) = await connection.request([("CLUSTER", "SLOTS")], QUESTION_TIMEOUT_S)
        if isinstance(reply, ReplyError):
            if "cluster support disabled" in str(reply):
                raise ServerUnsuitable(
                    self._use.credentials.names.url,
                    f"the server at {address} is not part of a cluster",
                    "use redis:// instead of redis+cluster://",
                )
            raise RedisUnavailable(f"{address}: {reply}")
        if not reply:
            raise RedisUnavailable(f"{address} knows no slots yet")
        return reply

    def _owners_of(self, asked: Address, ranges: Any) -> list[Node | None]:
        owners: list[Node | None] = [None] * SLOTS
        try:
            for first, last, primary, *_ in ranges:
                # An empty host means the server that was asked.
                host = primary[0].decode() if primary[0] else asked.host
                node = self._node_at(Address(host, int(primary[1])))
                owners[first : last + 1] = [node] * (last + 1 - first)
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            raise RedisUnavailable(f"{asked} answered CLUSTER SLOTS with no map") from error
        return owners

    async def _adopt(self, asked: Address, owners: list[Node | None]) -> None:
        self._owners = owners
        serving = {id(node) for node in owners if node is not None}
        for place, node in list(self._nodes.items()):
            if id(node) in serving or place == (asked.host, asked.port):
                continue
            # What it was asked before, or is asked as the target of an ASK, it still answers.
            node.retire()
            if node.idle:
                del self._nodes[place]
                await node.close()


def slot_of(key: str | bytes) -> int:
    """The cluster slot of a key: CRC16 of its hash tag, or of the whole key without one."""
    data = key.encode() if isinstance(key, str) else key
    opening = data.find(b"{")
    if opening >= 0:
        closing = data.find(b"}", opening + 1)
        if closing > opening + 1:
            data = data[opening + 1 : closing]
    # CRC-16/XMODEM, which is what Redis uses; the standard library has it in C.
    return binascii.crc_hqx(data, 0) % SLOTS
