"""Redis as the rest of Angarium sees it: one object over single, sentinel, cluster or embedded.

Ordinary calls share one connection per server; blocking reads and Pub/Sub have their own. All
of them come back by themselves after a restart or a failover. The promise about repeats: a
command that surely did not run (no connection, LOADING, MOVED, …) is sent again until
`unavailable_timeout_s` has passed; a command whose reply was lost is sent again only if its
caller said `repeatable`, and is `OutcomeUnknown` otherwise.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Literal, NoReturn, Self

from angarium.redis.backoff import Backoff
from angarium.redis.cluster import Cluster
from angarium.redis.connection import Argument, Command, Connection, Credentials, ReplyError
from angarium.redis.embedded.server import EmbeddedServer
from angarium.redis.errors import (
    AngariumError,
    OutcomeUnknown,
    Overloaded,
    RedisUnavailable,
    ScriptFailed,
    ServerUnsettled,
    ServerUnsuitable,
    SettingInvalid,
)
from angarium.redis.node import Node, ServerUse
from angarium.redis.options import Durability, RedisOptions
from angarium.redis.scripts import Script
from angarium.redis.server_info import ServerInfo, read_server_info
from angarium.redis.subscription import Subscription
from angarium.redis.topology import SentinelLocator, Single, Topology, always_at
from angarium.redis.url import parse_redis_url

# Replies that say "not now": nothing was done.
TRANSIENT = frozenset(("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "UNBLOCKED"))
# Replies that say "not here": nothing was done.
REDIRECTIONS = frozenset(("MOVED", "ASK", "READONLY"))
REFUSALS = TRANSIENT | REDIRECTIONS
# Beyond the time a blocking read asks the server to wait: after this the connection is dead.
BLOCKING_MARGIN_S = 5.0
# Keys looked at by one SCAN: some tens of microseconds of the server's time.
SCAN_COUNT = 1_000

Pool = Literal["shared", "durable", "blocking"]


class Redis:
    """Use `connect`, then `async with` or `close`. The constructor does not judge the server."""

    def __init__(self, options: RedisOptions) -> None:
        self.options = options
        self._embedded = _embedded(options)
        url = parse_redis_url(options.url, options.names.url)
        credentials = Credentials(
            url.username,
            url.password,
            url.database,
            url.tls_context(),
            options.client_name,
            options.names,
        )
        self._use = use = ServerUse(credentials, options.connections_max)
        self._topology: Topology
        if url.kind == "cluster":
            self._topology = Cluster(url.addresses, use)
        elif self._embedded is not None:
            self._topology = Single(self._embedded.address, use)
        elif url.kind == "sentinel":
            locate = SentinelLocator(url.addresses, url.primary, credentials)
            self._topology = Single(locate, use)
        else:
            self._topology = Single(always_at(url.addresses[0]), use)
        self.info: ServerInfo
        """What `connect` learned of the server."""

    @classmethod
    async def connect(cls, options: RedisOptions) -> Self:
        """Reach the server, learn what it is, and refuse one that would lose messages."""
        redis = cls(options)
        try:
            await redis._check()
        except BaseException as error:
            await redis.close()
            if isinstance(error, RedisUnavailable):
                hint = f"start it, or set {options.names.url} to one that runs"
                raise RedisUnavailable(f"{error}; {hint}") from error
            raise
        return redis

    async def _check(self) -> None:
        """During a failover or restart, retry until the server has settled."""
        attempt = _Attempt(self.options.unavailable_timeout_s)
        while True:
            try:
                self.info = await read_server_info(self.call)
                self.info.check(self.options)
                if self.clustered:
                    for node in await self._topology.nodes():
                        (await read_server_info(self._caller(node))).check(self.options)
                return
            except ServerUnsettled as error:
                await attempt.pause_or_raise(error)

    @property
    def clustered(self) -> bool:
        return self._topology.clustered

    @property
    def unmatched(self) -> int:
        """Connections closed so far because their replies did not match their commands."""
        return self._use.unmatched

    async def call(self, *command: Argument, key: str | bytes | None = None) -> Any:
        """One command that may safely run twice. `key` decides the node on a cluster."""
        (reply,) = await self.execute([command], key=key, repeatable=True)
        if isinstance(reply, ReplyError):
            self.raise_refusal(reply)
        return reply

    async def execute(
        self,
        commands: Sequence[Command],
        *,
        key: str | bytes | None,
        repeatable: bool,
        timeout_s: float | None = None,
        pool: Pool = "shared",
    ) -> list[Any]:
        """Send commands together to the node of `key`; the replies, errors as values.

        A command that the node refused (its slot moved, the server is loading) goes out again,
        alone with the others that were refused. A `pool` other than the shared connection is for
        commands that hold it: "durable" for WAIT and WAITAOF, which count for the commands before
        them, so that there the first reply decides for all; "blocking" for reads that wait.
        """
        limit_s = timeout_s or self.options.call_timeout_s
        began_s = monotonic()
        attempt: _Attempt | None = None
        replies: list[Any] = []
        due: Sequence[int] = range(len(commands))
        asked: Node | None = None
        problem: AngariumError
        while True:
            try:
                node = asked or self._topology.known(key) or await self._topology.node_of(key)
                batch = commands if len(due) == len(commands) else [commands[at] for at in due]
                ready = node.ready if pool == "shared" and asked is None else None
                if ready is not None:
                    found = await ready.request(batch, limit_s)
                else:
                    found = await _send(node, batch, limit_s, pool, asking=asked is not None)
                if not replies:
                    if ReplyError not in map(type, found):
                        return found  # what almost all calls do
                    replies = list(found)
                refusal, due = _sort(found, due, replies, whole=pool == "durable")
                if refusal is None:
                    return replies
                asked = await self._redirected(refusal)
                problem = RedisUnavailable(f"Redis is not ready: {refusal}")
            except (RedisUnavailable, OutcomeUnknown) as error:
                if isinstance(error, OutcomeUnknown) and not repeatable:
                    raise
                asked, problem = None, error
            if asked is None:
                if len(due) < len(commands):
                    problem = OutcomeUnknown(f"some of the commands have run: {problem}")
                attempt = attempt or _Attempt(self.options.unavailable_timeout_s, began_s)
                await attempt.pause_or_raise(problem)
                await self._look_around()

    async def run(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Argument],
        *,
        after: Sequence[Command] = (),
        timeout_s: float | None = None,
    ) -> list[Any]:
        """One call of a script, and commands that wait until it is durable; the replies of all.

        The script's own refusal is raised. It is loaded where the server does not know it.
        """
        for command in (script.evalsha, script.eval):
            replies = await self.execute(
                [command(keys, args), *after],
                key=keys[0],
                repeatable=script.repeatable,
                timeout_s=timeout_s,
                pool="durable" if after else "shared",
            )
            reply = replies[0]
            if not (isinstance(reply, ReplyError) and str(reply).startswith("NOSCRIPT")):
                break
        if isinstance(reply, ReplyError):
            self.raise_refusal(reply)
        return replies

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
                    pool="blocking",
                )
            except (RedisUnavailable, OutcomeUnknown):
                await asyncio.sleep(backoff.next_delay_s())
                continue
            if isinstance(reply, ReplyError):
                self.raise_refusal(reply)
            return reply

    def subscribe(
        self,
        *channels: str,
        messages_max: int = 100_000,
        bytes_max: int = 64 * 1024 * 1024,
        key: str | None = None,
    ) -> Subscription:
        """Messages of some channels, resubscribed by itself after every loss.

        On a cluster each node passes messages on in an order of its own. Subscribers that must
        see the same order name the same `key`, and so the same node.
        """

        async def open_subscriber(on_push: Callable[[Any], None]) -> Connection:
            return await self._open_subscriber(on_push, key)

        return Subscription(open_subscriber, channels, messages_max, bytes_max)

    async def call_each_node(self, *command: Argument) -> list[Any]:
        """One repeatable command on every primary."""
        return [await self._caller(node)(*command) for node in await self._topology.nodes()]

    async def find_keys(self, pattern: str, kind: str) -> set[bytes]:
        """Keys of one type on every primary; those that come or go meanwhile may be missed."""
        attempt = _Attempt(self.options.unavailable_timeout_s)
        while True:
            try:
                found: set[bytes] = set()
                for node in await self._topology.nodes():
                    found |= await _scan(self._caller(node), pattern, kind)
                return found
            except (RedisUnavailable, OutcomeUnknown) as error:
                await attempt.pause_or_raise(error)
                await self._look_around()

    async def close(self) -> None:
        await self._topology.close()
        if self._embedded is not None:
            self._embedded.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def raise_refusal(self, reply: Exception) -> NoReturn:
        """Turn an error reply into the error that says what happened."""
        text = str(reply)
        if text.startswith("OOM"):
            raise Overloaded("the server's maxmemory") from reply
        if text.startswith("NOAUTH"):
            problem = f"the server wants a password, and none is set ({text})"
            raise ServerUnsuitable(
                self.options.names.url, problem, "write redis://:PASSWORD@HOST:PORT"
            ) from reply
        if text.startswith("NOPERM"):
            raise ServerUnsuitable(
                self.options.names.url,
                f"the Redis user may not do this ({text})",
                "grant it @all on the prefix's keys and channels",
            ) from reply
        raise ScriptFailed(text) from reply

    async def _open_subscriber(self, on_push: Callable[[Any], None], key: str | None) -> Connection:
        await self._look_around()
        if key is not None:
            return await (await self._topology.node_of(key)).open(on_push)
        # A classic PUBLISH reaches every node of a cluster, so any node will do.
        node = random.choice(list(await self._topology.nodes()))
        return await node.open(on_push)

    async def _redirected(self, refusal: str) -> Node | None:
        """The node to ask this once, if the refusal named one."""
        if _word(refusal) in REDIRECTIONS:
            return await self._topology.redirected(refusal)
        return None

    async def _look_around(self) -> None:
        try:
            await self._topology.failed()
        except (RedisUnavailable, OutcomeUnknown):
            return  # The next attempt says so again, with its own deadline.

    def _caller(self, node: Node) -> Callable[..., Any]:
        async def call(*command: Argument) -> Any:
            (reply,) = await _send(node, [command], self.options.call_timeout_s, "shared")
            if isinstance(reply, ReplyError):
                self.raise_refusal(reply)
            return reply

        return call


class _Attempt:
    """The time one call may wait for Redis to come back, with jittered pauses."""

    def __init__(self, timeout_s: float, began_s: float | None = None) -> None:
        self._deadline_s = (monotonic() if began_s is None else began_s) + timeout_s
        self._backoff = Backoff(base_s=0.01, ceiling_s=0.5)

    async def pause_or_raise(self, error: AngariumError) -> None:
        delay_s = self._backoff.next_delay_s()
        if monotonic() + delay_s > self._deadline_s:
            raise error
        await asyncio.sleep(delay_s)


async def _send(
    node: Node,
    commands: Sequence[Command],
    timeout_s: float,
    pool: Pool,
    *,
    asking: bool = False,
) -> list[Any]:
    if asking:
        # ASKING holds for the next command only, so each gets its own.
        commands = [part for command in commands for part in (("ASKING",), command)]
    if pool == "shared":
        connection = await node.connection()
        await connection.drained()
        replies = await connection.request(commands, timeout_s)
    else:
        connections = node.durable if pool == "durable" else node.blocking
        async with connections.take() as connection:
            replies = await connection.request(commands, timeout_s)
    return replies[1::2] if asking else replies


async def _scan(call: Callable[..., Any], pattern: str, kind: str) -> set[bytes]:
    found: set[bytes] = set()
    cursor = b"0"
    while True:
        question = ("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT, "TYPE", kind)
        cursor, names = await call(*question)
        found.update(names)
        if cursor == b"0":
            return found


def _sort(
    found: list[Any], due: Sequence[int], replies: list[Any], *, whole: bool
) -> tuple[str | None, Sequence[int]]:
    """File what was answered; the first refusal, and the places that are still due."""
    refusal = _refusal(found[0])
    if whole:
        if refusal is None:
            replies[:] = found
        return refusal, due
    still_due = []
    for at, reply in zip(due, found, strict=True):
        replies[at] = reply
        refused = _refusal(reply)
        if refused is not None:
            refusal = refusal or refused
            still_due.append(at)
    return refusal, still_due


def _refusal(reply: Any) -> str | None:
    if isinstance(reply, ReplyError) and _word(str(reply)) in REFUSALS:
        return str(reply)
    return None


def _word(text: str) -> str:
    """The code of an error reply; the rest is prose, and may be a script's own."""
    return text.partition(" ")[0]


def _embedded(options: RedisOptions) -> EmbeddedServer | None:
    if options.url != "embedded":
        return None
    if options.home is None:
        problem = "an embedded server needs a folder, and there is none here"
        raise SettingInvalid(options.names.url, problem, "use redis://host:6379")
    # Under 'always' one fsync covers a whole turn of the server's loop, so a batch waits a disk's
    # time; under 'everysec' WAITAOF would wait for up to a second.
    memory_only = options.durability is Durability.MEMORY
    fsync: Literal["everysec", "always"] = "everysec" if memory_only else "always"
    return EmbeddedServer(options.home, fsync=fsync, names=options.names)
