"""What every module runs on: the Redis client, the keyspace, the scripts and the durability.

A module's store gets a `Runtime` and calls transitions, alone or in batches; it never uses a
connection, a script's hash or a retry. Every transition gets the same first arguments (time, actor,
journal). A process that can't read our settings (an ACA-Py agent) starts a `Runtime` from
`RuntimeOptions`; this file imports no pydantic.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from angarium.redis.client import Redis
from angarium.redis.connection import Argument, Command, ReplyError
from angarium.redis.options import Durability, RedisOptions
from angarium.redis.scripts import Script
from angarium.runtime import keys
from angarium.runtime.batching import Batcher, BatchItem, BytesUnanswered, joined
from angarium.runtime.clock import Clock, SystemClock
from angarium.runtime.errors import LayoutMismatch, NotDurable, SettingInvalid
from angarium.runtime.keyspace import LAYOUT_VERSION, Keyspace
from angarium.runtime.limits import Limits
from angarium.runtime.scripts import load_script, status_of
from angarium.runtime.tracing import Tracing, open_tracing
from angarium.runtime.transition import BoundTransition, Item, Transition

if TYPE_CHECKING:
    from angarium.runtime.settings import CommonSettings

Store = TypeVar("Store")
CLAIM_LAYOUT = load_script("angarium.runtime", "claim_layout")
# The server reports the state of the write when this time is over. The connection's own time-out
# must be longer, or the report would be lost.
DURABILITY_TIMEOUT_MS = 5_000


@dataclass(frozen=True)
class RuntimeOptions:
    """What a runtime needs to know; `CommonSettings.runtime_options` makes it."""

    redis: RedisOptions
    keyspace: Keyspace
    journal_bytes_max: int
    """0 writes no journal."""
    limits: Limits


async def recorded_options(options: RuntimeOptions) -> RuntimeOptions:
    """`options` with the durability and the journal size that the roles recorded in Redis.

    For processes that can't read the settings. A value that no role has recorded stays as it is.
    """
    name = options.keyspace.global_name(keys.LAYOUT)
    async with Redis(options.redis) as redis:
        question = ("HMGET", name, "durability", "journal_bytes_max")
        durability, journal_bytes_max = await redis.call(*question, key=name)
    if durability:
        name, level = options.redis.names.durability, durability.decode()
        if level not in list(Durability):
            problem = f"Redis records the level '{level}', which this version does not know"
            raise SettingInvalid(name, problem, "install the version that the roles run")
        options = replace(options, redis=replace(options.redis, durability=Durability(level)))
    if journal_bytes_max:
        options = replace(options, journal_bytes_max=int(journal_bytes_max))
    return options


class Runtime:
    """Use `Runtime.open(settings)` as an async context manager."""

    def __init__(
        self,
        options: RuntimeOptions,
        redis: Redis,
        clock: Clock,
        actor: str,
        tracing: Tracing | None = None,
        settings: CommonSettings | None = None,
    ) -> None:
        self.options = options
        self._settings = settings
        self.redis = redis
        self.clock = clock
        self.actor = actor
        self.tracing = tracing
        """None without a collector; callers check this before they prepare a span."""
        self.keyspace = options.keyspace
        self._journal_keys = [
            (self.keyspace.name(keys.JOURNAL, p), self.keyspace.name(keys.JOURNAL_META, p))
            for p in range(self.keyspace.partitions)
        ]
        self._batchers: list[Batcher[Any, Any]] = []
        self._transitions: dict[Transition[Any], BoundTransition[Any]] = {}
        self._stores: dict[Callable[[Runtime], Any], Any] = {}
        self._unanswered = BytesUnanswered(options.limits)

    @property
    def settings(self) -> CommonSettings:
        assert self._settings is not None, "this runtime was started without settings"
        return self._settings

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        settings: CommonSettings | RuntimeOptions,
        *,
        clock: Clock | None = None,
        actor: str | None = None,
    ) -> AsyncIterator[Self]:
        """Connect, check the layout that Redis records, and close everything at the end."""
        if isinstance(settings, RuntimeOptions):
            options, given = settings, None
        else:
            options, given = settings.runtime_options(), settings
        async with await Redis.connect(options.redis) as redis:
            actor = actor or new_actor()
            # Only processes with our settings make spans.
            tracing = None if given is None else open_tracing(actor)
            runtime = cls(options, redis, clock or SystemClock(), actor, tracing, given)
            await runtime._claim_layout()
            try:
                yield runtime
            finally:
                for batcher in runtime._batchers:
                    await batcher.close()
                if tracing is not None:
                    await tracing.close()

    async def record_options(self) -> None:
        """Record the durability and the journal size in Redis, for `recorded_options`.

        Every role does so when it starts. The role that started last wins.
        """
        name = self.keyspace.global_name(keys.LAYOUT)
        durability, journal = self.options.redis.durability, self.options.journal_bytes_max
        pairs = ("durability", durability, "journal_bytes_max", journal)
        await self.redis.call("HSET", name, *pairs, key=name)

    def store(self, kind: Callable[[Runtime], Store]) -> Store:
        """The module's store on this runtime. All callers share it, and so its batches."""
        found = self._stores.get(kind)
        if found is None:
            found = self._stores[kind] = kind(self)
        return cast(Store, found)

    async def run(
        self,
        script: Script,
        partition: int,
        keys: Sequence[str] = (),
        args: Sequence[Argument] = (),
        *,
        durable: bool = True,
    ) -> Any:
        """One call of one transition. Returns when the write has the configured durability."""
        now_ms = self.clock.now_ms()
        return await self._call(
            script,
            partition,
            (*self._journal_keys[partition], *keys),
            ("" if now_ms is None else now_ms, self.actor, self.options.journal_bytes_max, *args),
            durable=durable and script.writes,
        )

    def batched(
        self,
        script: Script,
        shared_keys: Callable[[int], Sequence[str]],
        shared_args: Sequence[Argument] = (),
    ) -> Batcher[BatchItem, Any]:
        """A batcher over `script`, whose reply is one element per item.

        KEYS are the journal's, `shared_keys(partition)`, then each item's own; ARGV likewise,
        with the number of items between the shared ones and the items.
        """

        async def run(partition: int, items: list[BatchItem]) -> Sequence[Any]:
            names, values = joined(shared_keys(partition), shared_args, items)
            replies: Sequence[Any] = await self.run(script, partition, names, values)
            return replies

        batcher: Batcher[BatchItem, Any] = Batcher(run, self.options.limits, self._unanswered)
        self._batchers.append(batcher)
        return batcher

    async def call(
        self,
        transition: Transition[Item],
        partition: int,
        args: tuple[Any, ...] | None = None,
        items: Sequence[Item] = (),
        *,
        durable: bool = True,
    ) -> Any:
        """One call of a declared transition: its reply, or one for each item."""
        bound = self._bound(transition)
        names, values = bound.call(partition, args, items)
        reply = await self.run(bound.script, partition, names, values, durable=durable)
        if transition.item is None or transition.one_reply:
            return transition.decode(reply)
        return [transition.decode(each) for each in reply]

    def batch(
        self, transition: Transition[Item], args: tuple[Any, ...] | None = None
    ) -> Batcher[Item, Any]:
        """Single calls of a declared transition that share script calls; `args` are the same for
        all of them. A reply is a variant, as `Transition.decode` gives it."""
        bound = self._bound(transition)

        async def run(partition: int, items: list[Item]) -> Sequence[Any]:
            names, values = bound.call(partition, args, items)
            return transition.decode_all(await self.run(bound.script, partition, names, values))

        batcher: Batcher[Item, Any] = Batcher(run, self.options.limits, self._unanswered)
        self._batchers.append(batcher)
        return batcher

    def _bound(self, transition: Transition[Item]) -> BoundTransition[Item]:
        found = self._transitions.get(transition)
        if found is None:
            found = self._transitions[transition] = BoundTransition(transition, self.keyspace)
        return found

    async def _call(
        self,
        script: Script,
        partition: int,
        names: Sequence[str],
        args: Sequence[Argument],
        *,
        durable: bool,
    ) -> Any:
        after = self._durability_commands(partition) if durable else []
        timeout_s = 2 * DURABILITY_TIMEOUT_MS / 1000 if after else None
        replies = await self.redis.run(script, names, args, after=after, timeout_s=timeout_s)
        if after:
            self._check_durable(replies[-1])
        return replies[0]

    def _durability_commands(self, partition: int) -> list[Command]:
        if self.options.redis.durability is Durability.MEMORY:
            return []
        # A call whose work is done already (a repeat, a duplicate) writes nothing, and WAIT would
        # return at once although the first write may not be safe yet. The barrier is a write after
        # everything that this reply may depend on.
        barrier: Command = ("SET", self.keyspace.name(keys.BARRIER, partition), 1)
        if self.options.redis.durability is Durability.REPLICA:
            return [barrier, ("WAIT", 1, DURABILITY_TIMEOUT_MS)]
        if self.redis.info.waitaof:
            return [barrier, ("WAITAOF", 1, 0, DURABILITY_TIMEOUT_MS)]
        return []  # The server syncs before each reply; ServerInfo.check has verified that.

    def _check_durable(self, reply: Any) -> None:
        if isinstance(reply, ReplyError):
            raise NotDurable(f"written, but Redis could not confirm it: {reply}")
        confirmed = reply[0] if isinstance(reply, list) else reply
        if confirmed < 1:
            raise NotDurable(
                f"written, but not confirmed as '{self.options.redis.durability}' "
                f"within {DURABILITY_TIMEOUT_MS} ms"
            )

    async def _claim_layout(self) -> None:
        ours = self.keyspace
        name = ours.global_name(keys.LAYOUT)
        args = (LAYOUT_VERSION, ours.partitions, ours.prefix)
        reply = await self.redis.call(*CLAIM_LAYOUT.eval([name], args), key=name)
        if status_of(reply) == "differs":
            version, partitions = int(reply[1]), int(reply[2])
            if version != LAYOUT_VERSION:
                raise LayoutMismatch(
                    "ANGARIUM_REDIS_URL",
                    f"Redis holds data of layout {version}, this version writes {LAYOUT_VERSION}",
                    "use the matching version of Angarium, or another ANGARIUM_PREFIX",
                )
            raise LayoutMismatch(
                "ANGARIUM_PARTITIONS",
                f"Redis holds data in {partitions} partitions, the setting says {ours.partitions}",
                f"set it to {partitions}, or use another ANGARIUM_PREFIX",
            )
        if status_of(reply) == "created":
            known = self.keyspace.global_name(keys.KEYSPACES)
            await self.redis.call("SADD", known, ours.prefix, key=known)


def new_actor() -> str:
    """A unique, readable name of this process for leases and the journal."""

    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
