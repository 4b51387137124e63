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
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, cast

from angarium.redis.client import Redis
from angarium.redis.connection import Argument, Command, ReplyError
from angarium.redis.options import Durability, RedisOptions
from angarium.redis.scripts import Script
from angarium.redis.subscription import Subscription
from angarium.runtime import keys
from angarium.runtime.batching import Batcher, BytesUnanswered
from angarium.runtime.clock import Clock, SystemClock
from angarium.runtime.errors import (
    JOURNAL_FULL,
    JournalFull,
    LayoutMismatch,
    NotDurable,
    ScriptFailed,
    SettingInvalid,
)
from angarium.runtime.keyspace import LAYOUT_VERSION, Keyspace
from angarium.runtime.limits import Limits
from angarium.runtime.tracing import Tracing, open_tracing
from angarium.runtime.transition import BoundTransition, Item, Transition

if TYPE_CHECKING:
    from angarium.runtime.settings import CommonSettings

Store = TypeVar("Store")


class LayoutClaim(NamedTuple):
    layout_version: int
    partitions: int
    prefix: str


class OtherLayout(NamedTuple):
    layout_version: int
    partitions: int


CLAIM_LAYOUT: Transition[Any] = Transition(
    "angarium.runtime",
    "claim_layout",
    keys={"layout": None},
    args=LayoutClaim,
    replies={"created": None, "agreed": None, "differs": OtherLayout},
    journalled=False,
)
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
    journal_refuses: bool = False
    """Whether new work is refused while the journal is full."""


async def recorded_options(options: RuntimeOptions) -> RuntimeOptions:
    """`options` with the durability and the journal size that the roles recorded in Redis.

    For processes that can't read the settings. A value that no role has recorded stays as it is.
    """
    name = options.keyspace.global_name(keys.LAYOUT)
    async with Redis(options.redis) as redis:
        question = ("HMGET", name, "durability", "journal_bytes_max", "journal_full")
        durability, journal_bytes_max, full = await redis.call(*question, key=name)
    if durability:
        name, level = options.redis.names.durability, durability.decode()
        if level not in list(Durability):
            problem = f"Redis records the level '{level}', which this version does not know"
            raise SettingInvalid(name, problem, "install the version that the roles run")
        options = replace(options, redis=replace(options.redis, durability=Durability(level)))
    if journal_bytes_max:
        options = replace(options, journal_bytes_max=int(journal_bytes_max))
    return replace(options, journal_refuses=full == b"refuse") if full else options


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
        # Below 0: transitions that let new work in are refused while the journal is full.
        sign = -1 if options.journal_refuses else 1
        self._journal_bytes_max = str(sign * options.journal_bytes_max)
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
        full = "refuse" if self.options.journal_refuses else "drop"
        pairs = ("durability", durability, "journal_bytes_max", journal, "journal_full", full)
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
        names = (*self._journal_keys[partition], *keys)
        values = ("" if now_ms is None else str(now_ms), self.actor, self._journal_bytes_max, *args)
        after = self._durability_commands(partition) if durable and script.writes else ()
        timeout_s = 2 * DURABILITY_TIMEOUT_MS / 1000 if after else None
        try:
            replies = await self.redis.run(script, names, values, after=after, timeout_s=timeout_s)
        except ScriptFailed as error:
            if str(error).startswith(JOURNAL_FULL):
                raise JournalFull from None
            raise
        if after:
            self._check_durable(replies[-1])
        return replies[0]

    async def call(
        self,
        transition: Transition[Item],
        partition: int,
        args: tuple[Any, ...] | None = None,
        items: Sequence[Item] = (),
        *,
        names: Sequence[str] = (),
        durable: bool = True,
    ) -> Any:
        """One call of a declared transition: its reply, or one for each item. `names` are the keys
        that the declaration leaves to the caller."""
        bound = self._bound(transition)
        declared, values = bound.call(partition, args, items)
        names = names or declared
        reply = await self.run(bound.script, partition, names, values, durable=durable)
        if transition.item is None or transition.one_reply:
            return transition.decode(reply)
        return [transition.decode(each) for each in reply]

    def subscribe(self, *channels: str) -> Subscription:
        """Notices of some channels, with the limits of this process."""
        limits = self.settings.limits
        return self.redis.subscribe(
            *channels,
            messages_max=limits.subscription_messages_max,
            bytes_max=limits.subscription_bytes_max,
        )

    def batch(
        self,
        transition: Transition[Item],
        args: tuple[Any, ...] | Callable[[int], tuple[Any, ...]] | None = None,
        receive: Callable[[Sequence[Item], Sequence[Any]], None] | None = None,
    ) -> Batcher[Item, Any]:
        """Single calls of a declared transition that share script calls. `args` are the same for
        all of them, or a function that gives those of the next script call of a partition. A reply
        is a variant, as `Transition.decode` gives it. `receive`: see `Batcher`."""
        bound = self._bound(transition)

        async def run(partition: int, items: list[Item]) -> Sequence[Any]:
            given = args(partition) if callable(args) else args
            names, values = bound.call(partition, given, items)
            return transition.decode_all(await self.run(bound.script, partition, names, values))

        batcher: Batcher[Item, Any] = Batcher(run, self.options.limits, self._unanswered, receive)
        self._batchers.append(batcher)
        return batcher

    def _bound(self, transition: Transition[Item]) -> BoundTransition[Item]:
        found = self._transitions.get(transition)
        if found is None:
            found = self._transitions[transition] = BoundTransition(transition, self.keyspace)
        return found

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
        args = LayoutClaim(LAYOUT_VERSION, ours.partitions, ours.prefix)
        call = CLAIM_LAYOUT.script.eval([name], CLAIM_LAYOUT.arguments(args))
        reply = CLAIM_LAYOUT.decode(await self.redis.call(*call, key=name))
        if isinstance(reply, OtherLayout):
            version, partitions = reply
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
        if reply == "created":
            known = self.keyspace.global_name(keys.KEYSPACES)
            await self.redis.call("SADD", known, ours.prefix, key=known)


def new_actor() -> str:
    """A unique, readable name of this process for leases and the journal."""

    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
