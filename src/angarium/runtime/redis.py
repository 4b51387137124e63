"""Redis as the rest of Angarium sees it: one object over single, sentinel, cluster or embedded.

Ordinary calls share one connection per server; blocking reads and Pub/Sub have their own. All
of them come back by themselves after a restart or a failover. The promise about repeats: a
command that surely did not run (no connection, LOADING, MOVED, …) is sent again until
`unavailable_timeout_ms` has passed; a command whose reply was lost is sent again only if its
caller said `repeatable`, and is `OutcomeUnknown` otherwise.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn, Self

from angarium.runtime.backoff import Backoff
from angarium.runtime.embedded import EmbeddedServer
from angarium.runtime.errors import (
    AngariumError,
    OutcomeUnknown,
    Overloaded,
    RedisUnavailable,
    ScriptFailed,
    ServerUnsettled,
    ServerUnsuitable,
)
from angarium.runtime.redis_url import RedisUrl, parse_redis_url
from angarium.runtime.server_info import ServerInfo, read_server_info
from angarium.runtime.settings import Durability, Settings
from angarium.runtime.subscription import Subscription
from angarium.runtime.topology import Cluster, Node, SentinelLocator, Single, Topology, always_at
from angarium.runtime.wire import Argument, Command, Credentials, ReplyError, Wire

# Replies that say «not now, nothing was done».
TRANSIENT = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY ", "UNBLOCKED")
# Replies that say «not here, nothing was done».
REDIRECTIONS = ("MOVED", "ASK", "READONLY")
# Beyond the time a blocking read asks the server to wait: after this the connection is dead.
BLOCKING_MARGIN_S = 5.0

Connection = Literal["shared", "durable", "blocking"]


class Redis:
    """Use `connect`, then `async with` or `close`."""

    def __init__(
        self, topology: Topology, settings: Settings, embedded: EmbeddedServer | None
    ) -> None:
        self._topology = topology
        self._embedded = embedded
        self._call_timeout_s = settings.redis.call_timeout_ms / 1000
        self._unavailable_timeout_s = settings.redis.unavailable_timeout_ms / 1000
        self.info: ServerInfo

    @classmethod
    async def connect(cls, settings: Settings) -> Self:
        """Reach the server, learn what it is, and refuse one that would lose messages."""
        url = parse_redis_url(settings.redis_url)
        embedded = None
        if url.kind == "embedded":
            # Under 'always' one fsync covers a whole turn of the server's loop, so a batch waits
            # a disk's time; under 'everysec' WAITAOF would wait for up to a second.
            memory_only = settings.durability is Durability.MEMORY
            embedded = EmbeddedServer(settings.home, fsync="everysec" if memory_only else "always")
        topology = _topology(url, settings.redis.connections_max, embedded)
        redis = cls(topology, settings, embedded)
        try:
            await redis._check(settings)
        except BaseException as error:
            await redis.close()
            if isinstance(error, RedisUnavailable):
                hint = "start it, or set ANGARIUM_REDIS_URL to one that runs"
                raise RedisUnavailable(f"{error}; {hint}") from error
            raise
        return redis

    async def _check(self, settings: Settings) -> None:
        """Of a failover or a restart in these seconds the end is awaited, not its middle judged."""
        attempt = _Attempt(self._unavailable_timeout_s)
        while True:
            try:
                self.info = await read_server_info(self.call)
                self.info.check(settings)
                if self._topology.clustered:
                    for node in await self._topology.nodes():
                        (await read_server_info(self._caller(node))).check(settings)
                return
            except ServerUnsettled as error:
                await attempt.pause_or_raise(error)

    async def call(self, *command: Argument, key: str | None = None) -> Any:
        """One command that may safely run twice. `key` decides the node on a cluster."""
        (reply,) = await self.execute([command], key=key, repeatable=True)
        if isinstance(reply, ReplyError):
            raise_refusal(reply)
        return reply

    async def execute(
        self,
        commands: Sequence[Command],
        *,
        key: str | None,
        repeatable: bool,
        timeout_s: float | None = None,
        connection: Connection = "shared",
    ) -> list[Any]:
        """Send commands together to the node of `key`; the replies, errors as values.

        A `connection` other than the shared one is for commands that hold it: "durable" for
        WAIT and WAITAOF, "blocking" for reads that wait. The first reply decides whether the
        whole was refused and goes out again.
        """
        limit_s = timeout_s or self._call_timeout_s
        attempt = _Attempt(self._unavailable_timeout_s)
        asked: Node | None = None
        problem: AngariumError
        while True:
            try:
                node = asked or await self._topology.node_of(key)
                replies = await _send(node, commands, limit_s, connection, asking=asked is not None)
                refusal = _refusal(replies[0])
                if refusal is None:
                    return replies
                asked = await self._redirected(refusal)
                problem = RedisUnavailable(f"Redis is not ready: {refusal}")
            except (RedisUnavailable, OutcomeUnknown) as error:
                if isinstance(error, OutcomeUnknown) and not repeatable:
                    raise
                asked, problem = None, error
            if asked is None:
                await attempt.pause_or_raise(problem)
                await self._look_around()

    async def blocking(self, *command: Argument, key: str, block_ms: int) -> Any:
        """A blocking read that may safely run twice (XREAD, XREADGROUP; never BLPOP).

        It has a connection of its own and waits as long as it takes for Redis to come back.
        """
        backoff = Backoff()
        while True:
            try:
                (reply,) = await self.execute(
                    [command],
                    key=key,
                    repeatable=True,
                    timeout_s=block_ms / 1000 + BLOCKING_MARGIN_S,
                    connection="blocking",
                )
            except (RedisUnavailable, OutcomeUnknown):
                await asyncio.sleep(backoff.next_delay_s())
                continue
            if isinstance(reply, ReplyError):
                raise_refusal(reply)
            return reply

    def subscribe(
        self, *channels: str, messages_max: int = 100_000, key: str | None = None
    ) -> Subscription:
        """Messages of some channels, resubscribed by itself after every loss.

        On a cluster each node passes messages on in an order of its own. Subscribers that must
        see the same order name the same `key`, and so the same node.
        """

        async def open_subscriber(on_push: Callable[[Any], None]) -> Wire:
            return await self._open_subscriber(on_push, key)

        return Subscription(open_subscriber, channels, messages_max)

    async def call_each_node(self, *command: Argument) -> list[Any]:
        """One repeatable command on every primary."""
        return [await self._caller(node)(*command) for node in await self._topology.nodes()]

    async def close(self) -> None:
        await self._topology.close()
        if self._embedded is not None:
            self._embedded.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _open_subscriber(self, on_push: Callable[[Any], None], key: str | None) -> Wire:
        await self._look_around()
        if key is not None:
            return await (await self._topology.node_of(key)).open(on_push)
        # A classic PUBLISH reaches every node of a cluster, so any node will do.
        node = random.choice(list(await self._topology.nodes()))
        return await node.open(on_push)

    async def _redirected(self, refusal: str) -> Node | None:
        """The node to ask this once, if the refusal named one."""
        if refusal.startswith(REDIRECTIONS):
            return await self._topology.redirected(refusal)
        return None

    async def _look_around(self) -> None:
        try:
            await self._topology.failed()
        except (RedisUnavailable, OutcomeUnknown):
            return  # The next attempt says so again, with its own deadline.

    def _caller(self, node: Node) -> Callable[..., Any]:
        async def call(*command: Argument) -> Any:
            (reply,) = await _send(node, [command], self._call_timeout_s, "shared")
            if isinstance(reply, ReplyError):
                raise_refusal(reply)
            return reply

        return call


class _Attempt:
    """The time one call may wait for Redis to come back, with jittered pauses."""

    __slots__ = ("_backoff", "_deadline", "_loop")

    def __init__(self, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + timeout_s
        self._backoff: Backoff | None = None

    async def pause_or_raise(self, error: AngariumError) -> None:
        if self._backoff is None:
            self._backoff = Backoff(base_s=0.01, ceiling_s=0.5)
        delay_s = self._backoff.next_delay_s()
        if self._loop.time() + delay_s > self._deadline:
            raise error
        await asyncio.sleep(delay_s)


async def _send(
    node: Node,
    commands: Sequence[Command],
    timeout_s: float,
    connection: Connection,
    *,
    asking: bool = False,
) -> list[Any]:
    if asking:
        # ASKING holds for the next command only, so each gets its own.
        commands = [part for command in commands for part in (("ASKING",), command)]
    if connection == "shared":
        wire = await node.wire()
        if not wire.writable:
            await wire.drained()
        replies = await wire.request(commands, timeout_s)
    else:
        lanes = node.durable if connection == "durable" else node.blocking
        async with lanes.take() as wire:
            replies = await wire.request(commands, timeout_s)
    return replies[1::2] if asking else replies


def _refusal(reply: Any) -> str | None:
    if isinstance(reply, ReplyError) and str(reply).startswith((*TRANSIENT, *REDIRECTIONS)):
        return str(reply)
    return None


def raise_refusal(reply: Exception) -> NoReturn:
    """Turn an error reply into the error that says what happened."""
    text = str(reply)
    if text.startswith("OOM"):
        raise Overloaded("the server's maxmemory") from reply
    if text.startswith("NOPERM"):
        raise ServerUnsuitable(
            "ANGARIUM_REDIS_URL",
            f"the Redis user may not do this ({text})",
            "grant it @all on the prefix's keys and channels",
        ) from reply
    raise ScriptFailed(text) from reply


def _topology(url: RedisUrl, lanes_max: int, embedded: EmbeddedServer | None) -> Topology:
    credentials = Credentials(url.username, url.password, url.database, url.tls_context())
    if embedded is not None:
        return Single(embedded.address, credentials, lanes_max)
    if url.kind == "cluster":
        return Cluster(url.addresses, credentials, lanes_max)
    if url.kind == "sentinel":
        locate = SentinelLocator(url.addresses, url.primary, credentials)
        return Single(locate, credentials, lanes_max)
    return Single(always_at(url.addresses[0]), credentials, lanes_max)
