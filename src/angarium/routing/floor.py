"""What the room's stores stand on, and a floor that needs no settings.

Inside Angarium that is the `Runtime`. The ACA-Py plugin lives in another process, whose packages
can't be had together with those of our settings: there `PlainFloor` stands in. It connects by URL
to one server or a cluster, agrees with the layout that Redis holds, and runs the same scripts;
it knows nothing of durability levels, sentinels or the embedded server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from angarium.runtime import keyspace as keys
from angarium.runtime.backoff import Backoff
from angarium.runtime.batching import Batcher, BatchItem, BytesUnanswered, joined
from angarium.runtime.errors import (
    LayoutMismatch,
    OutcomeUnknown,
    RedisUnavailable,
    ScriptFailed,
    SettingInvalid,
)
from angarium.runtime.keyspace import LAYOUT_VERSION, Keyspace
from angarium.runtime.limits import MIB, Limits
from angarium.runtime.redis_url import parse_redis_url
from angarium.runtime.scripts import Script, load_script, status_of
from angarium.runtime.subscription import Subscription
from angarium.runtime.topology import Cluster, Node, Single, Topology, always_at
from angarium.runtime.wire import Argument, Command, Credentials, ReplyError, Wire

if TYPE_CHECKING:
    from angarium.runtime.tracing import Tracing

CLAIM_LAYOUT = load_script("angarium.runtime", "claim_layout")
CALL_TIMEOUT_S = 5.0
UNAVAILABLE_TIMEOUT_S = 10.0
NOT_NOW = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY ")
NOT_HERE = ("MOVED", "ASK", "READONLY")


class Connection(Protocol):
    """The part of `redis.client.Redis` that stores need."""

    def subscribe(self, *channels: str) -> Subscription: ...

    async def call(self, *command: Argument, key: str) -> Any: ...


class Floor(Protocol):
    """The part of `runtime.runtime.Runtime` that stores need."""

    @property
    def keyspace(self) -> Keyspace: ...

    @property
    def actor(self) -> str: ...

    @property
    def redis(self) -> Connection: ...

    @property
    def tracing(self) -> Tracing | None: ...

    async def run(
        self,
        script: Script,
        partition: int,
        keys: Sequence[str] = (),
        args: Sequence[Argument] = (),
        *,
        durable: bool = True,
    ) -> Any: ...

    def batched(
        self,
        script: Script,
        shared_keys: Callable[[int], Sequence[str]],
        shared_args: Sequence[Argument] = (),
    ) -> Batcher[BatchItem, Any]: ...


@dataclass(frozen=True)
class PlainSettings:
    """What a floor without settings has to be told."""

    redis_url: str
    actor: str
    prefix: str = ""
    partitions: int = 1
    topic_prefix: str = keys.TOPIC_PREFIX
    journal_bytes_max: int = 256 * MIB
    limits: Limits = field(default_factory=Limits)

    def keyspace(self) -> Keyspace:
        names = {
            key: self.topic_prefix + key.name.removeprefix(keys.TOPIC_PREFIX)
            for key in keys.KEYS
            if key.room == "routing" and key.name.startswith(keys.TOPIC_PREFIX)
        }
        return Keyspace(self.prefix, self.partitions, names)


class PlainFloor:
    """Use `PlainFloor.open(settings)` as an async context manager. It is its own `redis`."""

    def __init__(self, settings: PlainSettings, topology: Topology) -> None:
        self.keyspace = settings.keyspace()
        self.actor = settings.actor
        self.tracing: Tracing | None = None  # spans are of our own processes
        self._settings = settings
        self._topology = topology
        self._journal_keys = [
            (
                self.keyspace.name(keys.JOURNAL, number),
                self.keyspace.name(keys.JOURNAL_META, number),
            )
            for number in range(settings.partitions)
        ]
        self._batchers: list[Batcher[BatchItem, Any]] = []
        self._unanswered = BytesUnanswered(settings.limits)

    @property
    def redis(self) -> Self:
        return self

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: PlainSettings) -> AsyncIterator[Self]:
        floor = cls(settings, _topology(settings.redis_url))
        try:
            await floor._claim_layout()
            yield floor
        finally:
            for batcher in floor._batchers:
                await batcher.close()
            await floor._topology.close()

    async def run(
        self,
        script: Script,
        partition: int,
        keys: Sequence[str] = (),
        args: Sequence[Argument] = (),
        *,
        durable: bool = True,
    ) -> Any:
        names = (*self._journal_keys[partition], *keys)
        values = ("", self.actor, self._settings.journal_bytes_max, *args)
        reply = await self._execute(script.evalsha(names, values), names[0], script.repeatable)
        if isinstance(reply, ReplyError) and str(reply).startswith("NOSCRIPT"):
            reply = await self._execute(script.eval(names, values), names[0], script.repeatable)
        if isinstance(reply, ReplyError):
            raise ScriptFailed(str(reply))
        return reply

    def batched(
        self,
        script: Script,
        shared_keys: Callable[[int], Sequence[str]],
        shared_args: Sequence[Argument] = (),
    ) -> Batcher[BatchItem, Any]:
        async def run(partition: int, items: list[BatchItem]) -> Sequence[Any]:
            names, values = joined(shared_keys(partition), shared_args, items)
            replies: Sequence[Any] = await self.run(script, partition, names, values)
            return replies

        batcher: Batcher[BatchItem, Any] = Batcher(run, self._settings.limits, self._unanswered)
        self._batchers.append(batcher)
        return batcher

    async def call(self, *command: Argument, key: str) -> Any:
        """One command that may safely run twice."""
        reply = await self._execute(command, key, True)
        if isinstance(reply, ReplyError):
            raise ScriptFailed(str(reply))
        return reply

    async def append(self, name: str, item: str) -> None:
        """To the end of a list that is not of our keyspace, once."""
        reply = await self._execute(("RPUSH", name, item), name, False)
        if isinstance(reply, ReplyError):
            raise ScriptFailed(str(reply))

    def subscribe(self, *channels: str) -> Subscription:
        return Subscription(self._open_subscriber, channels, 100_000)

    async def _open_subscriber(self, on_push: Callable[[Any], None]) -> Wire:
        node = next(iter(await self._topology.nodes()))
        return await node.open(on_push)

    async def _execute(self, command: Command, key: str, repeatable: bool) -> Any:
        """Sent again until it surely ran once; after a lost reply only what is `repeatable`."""
        loop = asyncio.get_running_loop()
        give_up, backoff = loop.time() + UNAVAILABLE_TIMEOUT_S, Backoff(0.01, 0.5)
        asked: Node | None = None
        while True:
            problem: RedisUnavailable | OutcomeUnknown
            try:
                node = asked or await self._topology.node_of(key)
                commands = [("ASKING",), command] if asked else [command]
                reply = (await (await node.wire()).request(commands, CALL_TIMEOUT_S))[-1]
                asked = None
                text = str(reply) if isinstance(reply, ReplyError) else ""
                if not text.startswith((*NOT_NOW, *NOT_HERE)):
                    return reply
                if text.startswith(NOT_HERE):
                    asked = await self._topology.redirected(text)
                problem = RedisUnavailable(f"Redis is not ready: {text}")
            except (RedisUnavailable, OutcomeUnknown) as error:
                if isinstance(error, OutcomeUnknown) and not repeatable:
                    raise
                asked, problem = None, error
            if asked is None:
                delay_s = backoff.next_delay_s()
                if loop.time() + delay_s > give_up:
                    raise problem
                await asyncio.sleep(delay_s)
                await self._look_around()

    async def _look_around(self) -> None:
        try:
            await self._topology.failed()
        except (RedisUnavailable, OutcomeUnknown):
            return  # the next attempt says so again, with its own deadline

    async def _claim_layout(self) -> None:
        name = self.keyspace.global_name(keys.LAYOUT)
        args = (LAYOUT_VERSION, self.keyspace.partitions, self.keyspace.prefix)
        reply = await self.call(*CLAIM_LAYOUT.eval([name], args), key=name)
        if status_of(reply) == "differs":
            problem = f"Redis holds layout {int(reply[1])} in {int(reply[2])} partitions"
            raise LayoutMismatch("partitions", problem, "use the same here")


def _topology(text: str) -> Topology:
    url = parse_redis_url(text)
    credentials = Credentials(url.username, url.password, url.database, url.tls_context())
    if url.kind == "cluster":
        return Cluster(url.addresses, credentials, 1)
    if url.kind != "single":
        problem = f"{url.kind!r} can't be used from inside an ACA-Py agent"
        raise SettingInvalid("connection_url", problem, "use redis:// or redis+cluster://")
    return Single(always_at(url.addresses[0]), credentials, 1)
