"""Where a key lives, and our connections to each server: single, sentinel or cluster.

A `Node` is one server as we reach it: one wire shared by all ordinary calls, and a few lanes
for calls that hold their connection (a write that waits for the disk, a blocking read). A
topology finds the node of a key and learns from redirections. Nothing here retries: that is
`runtime/redis.py`.
"""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from angarium.runtime.address import Address
from angarium.runtime.errors import OutcomeUnknown, RedisUnavailable, ServerUnsuitable
from angarium.runtime.wire import Credentials, ReplyError, Wire, open_wire

SLOTS = 16384
# A refresh asks one server for the whole map; asking more often than this during a failover
# would load the very servers that are busy electing.
REFRESH_INTERVAL_S = 0.1
QUESTION_TIMEOUT_S = 5.0


class Lanes:
    """Connections that one caller at a time holds; kept for the next when it is done."""

    def __init__(self, open_one: Callable[[], Awaitable[Wire]], lanes_max: int) -> None:
        self._open_one = open_one
        self._permits = asyncio.Semaphore(lanes_max)
        self._idle: list[Wire] = []
        self._held: set[Wire] = set()

    @asynccontextmanager
    async def take(self) -> AsyncIterator[Wire]:
        async with self._permits:
            while self._idle:
                wire = self._idle.pop()
                if wire.usable:
                    break
            else:
                wire = await self._open_one()
            self._held.add(wire)
            try:
                yield wire
            except BaseException:
                # Its replies may still be on the way; the next caller must not wait for them.
                wire.close()
                raise
            finally:
                self._held.discard(wire)
                if wire.usable:
                    self._idle.append(wire)

    def drop(self) -> list[Wire]:
        dropped = [*self._idle, *self._held]
        self._idle.clear()
        for wire in dropped:
            wire.close("the server is no longer the right one")
        return dropped


# Blocking readers are a handful per process; this only stops a leak from eating all sockets.
BLOCKING_LANES_MAX = 1000


class Node:
    """One server. `locate` is asked at each new connection, so the address may change."""

    def __init__(
        self,
        locate: Callable[[], Awaitable[Address]],
        credentials: Credentials,
        lanes_max: int,
    ) -> None:
        self._locate = locate
        self._credentials = credentials
        self._shared: Wire | None = None
        self._opening: asyncio.Task[Wire] | None = None
        self.durable = Lanes(self.open, lanes_max)
        self.blocking = Lanes(self.open, BLOCKING_LANES_MAX)

    async def wire(self) -> Wire:
        """The shared wire, opened on first use and after a loss; one attempt at a time."""
        if self._shared is not None and self._shared.usable:
            return self._shared
        if self._opening is None:
            self._opening = asyncio.create_task(self.open())
            self._opening.add_done_callback(self._opened)
        opening = self._opening
        try:
            # Shielded: a caller that gives up must not cancel the attempt others wait for.
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if opening.cancelled() and task is not None and not task.cancelling():
                # The node was given up, not the caller: it must not take this for its own end.
                raise RedisUnavailable("the server is no longer one of ours") from None
            raise

    async def open(self, on_push: Callable[[Any], None] | None = None) -> Wire:
        """A new wire of the caller's own, who closes it."""
        return await open_wire(await self._locate(), self._credentials, on_push)

    def drop(self) -> list[Wire]:
        """Forget the connections: the server behind the address is no longer the right one."""
        dropped = [*self.durable.drop(), *self.blocking.drop()]
        if self._shared is not None:
            self._shared.close("the server is no longer the right one")
            dropped.append(self._shared)
            self._shared = None
        return dropped

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await asyncio.gather(*(wire.closed for wire in self.drop()))

    def _opened(self, task: asyncio.Task[Wire]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            self._shared = task.result()


class Topology(Protocol):
    clustered: bool

    async def node_of(self, key: str | bytes | None) -> Node: ...

    async def nodes(self) -> Sequence[Node]:
        """Every primary, for what must be asked of each."""

    async def redirected(self, error: str) -> Node | None:
        """Learn from a MOVED, ASK or READONLY; the node to ask this once, if one was named."""

    async def failed(self) -> None:
        """A server could not be reached: look for where its keys went."""

    async def close(self) -> None: ...


class Single:
    """One server, at an address that may be looked up anew at each connection."""

    clustered = False

    def __init__(
        self,
        locate: Callable[[], Awaitable[Address]],
        credentials: Credentials,
        lanes_max: int,
    ) -> None:
        self._node = Node(locate, credentials, lanes_max)

    async def node_of(self, key: str | bytes | None) -> Node:
        return self._node

    async def nodes(self) -> Sequence[Node]:
        return (self._node,)

    async def redirected(self, error: str) -> Node | None:
        self._node.drop()
        return None

    async def failed(self) -> None:
        return None

    async def close(self) -> None:
        await self._node.close()


class SentinelLocator:
    """Asks the sentinels, each in turn, who the primary is now."""

    def __init__(self, sentinels: Sequence[Address], primary: str, ours: Credentials) -> None:
        self._sentinels = list(sentinels)
        self._primary = primary
        # Sentinels have users of their own; only the transport is shared with the servers.
        self._credentials = Credentials(tls=ours.tls)

    async def __call__(self) -> Address:
        problems = []
        for sentinel in list(self._sentinels):
            try:
                found = await self._ask(sentinel)
            except (RedisUnavailable, OutcomeUnknown) as error:
                problems.append(str(error))
                continue
            # The one that answered goes first next time.
            self._sentinels.remove(sentinel)
            self._sentinels.insert(0, sentinel)
            return found
        raise RedisUnavailable(f"no sentinel knows '{self._primary}': {'; '.join(problems)}")

    async def _ask(self, sentinel: Address) -> Address:
        wire = await open_wire(sentinel, self._credentials)
        try:
            question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._primary)
            (reply,) = await wire.request([question], QUESTION_TIMEOUT_S)
        finally:
            wire.close()
        if not isinstance(reply, list):
            raise RedisUnavailable(f"{sentinel} answered {reply!r}")
        return Address(reply[0].decode(), int(reply[1]))


class Cluster:
    """Slots spread over nodes; the map is read from any node and follows redirections."""

    clustered = True

    def __init__(self, seeds: Sequence[Address], credentials: Credentials, lanes_max: int) -> None:
        self._seeds = tuple(seeds)
        self._credentials = credentials
        self._lanes_max = lanes_max
        self._nodes: dict[tuple[str, int], Node] = {}
        self._owners: list[Node | None] = [None] * SLOTS
        self._refreshing = asyncio.Lock()
        self._refreshed_at = float("-inf")

    async def node_of(self, key: str | bytes | None) -> Node:
        slot = slot_of(key) if key is not None else None
        for _ in range(2):
            if slot is None:
                owner = next((node for node in self._owners if node is not None), None)
            else:
                owner = self._owners[slot]
            if owner is not None:
                return owner
            await self._refresh()
        raise RedisUnavailable(f"no cluster node serves slot {slot} at the moment")

    async def nodes(self) -> Sequence[Node]:
        await self.node_of(None)
        return tuple(dict.fromkeys(node for node in self._owners if node is not None))

    async def redirected(self, error: str) -> Node | None:
        kind, _, rest = error.partition(" ")
        if kind == "ASK":
            host, _, port = rest.split(" ")[1].rpartition(":")
            return self._node_at(Address(host, int(port)))
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
            self._nodes[place] = Node(always_at(address), self._credentials, self._lanes_max)
        return self._nodes[place]

    async def _refresh(self) -> None:
        async with self._refreshing:
            loop = asyncio.get_running_loop()
            if loop.time() - self._refreshed_at < REFRESH_INTERVAL_S:
                return
            known = [Address(host, port) for host, port in self._nodes]
            problems = []
            for address in dict.fromkeys((*known, *self._seeds)):
                try:
                    ranges = await self._ask(address)
                except (RedisUnavailable, OutcomeUnknown) as error:
                    problems.append(str(error))
                    continue
                await self._adopt(address, ranges)
                self._refreshed_at = loop.time()
                return
            raise RedisUnavailable(f"no cluster node answers: {'; '.join(problems)}")

    async def _ask(self, address: Address) -> list[Any]:
        wire = await self._node_at(address).wire()
        (reply,) = await wire.request([("CLUSTER", "SLOTS")], QUESTION_TIMEOUT_S)
        if isinstance(reply, ReplyError):
            if "cluster support disabled" in str(reply):
                raise ServerUnsuitable(
                    "ANGARIUM_REDIS_URL",
                    f"the server at {address} is not part of a cluster",
                    "use redis:// instead of redis+cluster://",
                )
            raise RedisUnavailable(f"{address}: {reply}")
        if not reply:
            raise RedisUnavailable(f"{address} knows no slots yet")
        return list(reply)

    async def _adopt(self, asked: Address, ranges: list[Any]) -> None:
        owners: list[Node | None] = [None] * SLOTS
        for first, last, primary, *_ in ranges:
            # An empty host means «the one you asked».
            host = primary[0].decode() if primary[0] else asked.host
            node = self._node_at(Address(host, int(primary[1])))
            owners[first : last + 1] = [node] * (last + 1 - first)
        self._owners = owners
        serving = {id(node) for node in owners if node is not None}
        for place, node in list(self._nodes.items()):
            if id(node) not in serving and place != (asked.host, asked.port):
                del self._nodes[place]
                await node.close()


def always_at(address: Address) -> Callable[[], Awaitable[Address]]:
    async def locate() -> Address:
        return address

    return locate


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
