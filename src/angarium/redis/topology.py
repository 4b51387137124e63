"""Where a key lives: one server, or the primary behind sentinels. Clusters are in `cluster.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from angarium.redis.address import Address
from angarium.redis.connection import Credentials, open_connection
from angarium.redis.errors import OutcomeUnknown, RedisUnavailable
from angarium.redis.node import Locate, Node, ServerUse

QUESTION_TIMEOUT_S = 5.0


class Topology(Protocol):
    clustered: bool

    def known(self, key: str | bytes | None) -> Node | None:
        """The node of a key, if nobody has to be asked for it."""

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

    def __init__(self, locate: Locate, use: ServerUse) -> None:
        self._node = Node(locate, use)

    def known(self, key: str | bytes | None) -> Node | None:
        return self._node

    async def node_of(self, key: str | bytes | None) -> Node:
        return self._node

    async def nodes(self) -> Sequence[Node]:
        return (self._node,)

    async def redirected(self, error: str) -> Node | None:
        self._node.retire()
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
        connection = await open_connection(sentinel, self._credentials)
        try:
            question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._primary)
            (reply,) = await connection.request([question], QUESTION_TIMEOUT_S)
        finally:
            connection.close()
        try:
            host, port = reply
            return Address(host.decode(), int(port))
        except (TypeError, ValueError, AttributeError):
            raise RedisUnavailable(f"{sentinel} answered {reply!r:.100}") from None


def always_at(address: Address) -> Locate:
    async def locate() -> Address:
        return address

    return locate
