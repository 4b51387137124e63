"""What every room stands on: the connection, the keyspace, the scripts, the durability asked for.

A room's store gets a `Runtime` and calls `run` or makes `batched` transitions; it never sees a
connection, a hash or a retry. Every transition gets the same first arguments (time, actor,
journal), so no script and no store can forget them.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from angarium.runtime import keyspace as keys
from angarium.runtime.batching import Batcher, BatchItem, BytesUnanswered, joined
from angarium.runtime.clock import Clock, SystemClock
from angarium.runtime.errors import LayoutMismatch, NotDurable
from angarium.runtime.keyspace import LAYOUT_VERSION, Keyspace
from angarium.runtime.redis import Redis, raise_refusal
from angarium.runtime.scripts import Script, load_script, status_of
from angarium.runtime.settings import Durability, Settings
from angarium.runtime.tracing import Tracing, open_tracing
from angarium.runtime.wire import Argument, Command, ReplyError

CLAIM_LAYOUT = load_script("angarium.runtime", "claim_layout")
# The server tells how far the write came when this is over; the connection's own time-out
# must be longer, or we would learn nothing.
DURABILITY_TIMEOUT_MS = 5_000


class Runtime:
    """Use `Runtime.open(settings)` as an async context manager."""

    def __init__(
        self,
        settings: Settings,
        redis: Redis,
        clock: Clock,
        actor: str,
        tracing: Tracing | None = None,
    ) -> None:
        self.settings = settings
        self.redis = redis
        self.clock = clock
        self.actor = actor
        self.tracing = tracing
        """None unless a collector is named: to be asked before anything is done for a span."""
        self.keyspace = Keyspace.from_settings(settings)
        self._journal_bytes_max = settings.journal.bytes_max if settings.journal.enabled else 0
        self._journal_keys = [
            (self.keyspace.name(keys.JOURNAL, p), self.keyspace.name(keys.JOURNAL_META, p))
            for p in range(settings.partitions)
        ]
        self._batchers: list[Batcher[BatchItem, Any]] = []
        self._unanswered = BytesUnanswered(settings.limits)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: Settings, *, clock: Clock | None = None, actor: str | None = None
    ) -> AsyncIterator[Self]:
        """Connect, agree with what Redis holds already, and give all back at the end."""
        async with await Redis.connect(settings) as redis:
            actor = actor or new_actor()
            tracing = open_tracing(actor)
            runtime = cls(settings, redis, clock or SystemClock(), actor, tracing)
            await runtime._claim_layout()
            try:
                yield runtime
            finally:
                for batcher in runtime._batchers:
                    await batcher.close()
                if tracing is not None:
                    await tracing.close()

    async def run(
        self,
        script: Script,
        partition: int,
        keys: Sequence[str] = (),
        args: Sequence[Argument] = (),
        *,
        durable: bool = True,
    ) -> Any:
        """One call of one transition: done, at the durability asked for, or it raises."""
        now_ms = self.clock.now_ms()
        return await self._call(
            script,
            partition,
            (*self._journal_keys[partition], *keys),
            ("" if now_ms is None else now_ms, self.actor, self._journal_bytes_max, *args),
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

        batcher: Batcher[BatchItem, Any] = Batcher(run, self.settings.limits, self._unanswered)
        self._batchers.append(batcher)
        return batcher

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
        for command in (script.evalsha, script.eval):
            replies = await self.redis.execute(
                [command(names, args), *after],
                key=names[0],
                repeatable=script.repeatable,
                timeout_s=2 * DURABILITY_TIMEOUT_MS / 1000 if after else None,
                connection="durable" if after else "shared",
            )
            reply = replies[0]
            if not (isinstance(reply, ReplyError) and str(reply).startswith("NOSCRIPT")):
                break
        if isinstance(reply, ReplyError):
            raise_refusal(reply)
        if after:
            self._check_durable(replies[-1])
        return reply

    def _durability_commands(self, partition: int) -> list[Command]:
        if self.settings.durability is Durability.MEMORY:
            return []
        # A call that found its work done already (a repeat, a duplicate) writes nothing, and
        # WAIT would be satisfied at once though the first write is not safe yet. The barrier
        # is a write of our own behind everything that this reply may have relied on.
        barrier: Command = ("SET", self.keyspace.name(keys.BARRIER, partition), 1)
        if self.settings.durability is Durability.REPLICA:
            return [barrier, ("WAIT", 1, DURABILITY_TIMEOUT_MS)]
        if self.redis.info.waitaof:
            return [barrier, ("WAITAOF", 1, 0, DURABILITY_TIMEOUT_MS)]
        return []  # It syncs before each reply; ServerInfo.check has seen to that.

    def _check_durable(self, reply: Any) -> None:
        if isinstance(reply, ReplyError):
            raise NotDurable(f"written, but Redis could not confirm it: {reply}")
        confirmed = reply[0] if isinstance(reply, list) else reply
        if confirmed < 1:
            raise NotDurable(
                f"written, but not confirmed as '{self.settings.durability}' "
                f"within {DURABILITY_TIMEOUT_MS} ms"
            )

    async def _claim_layout(self) -> None:
        settings = self.settings
        name = self.keyspace.global_name(keys.LAYOUT)
        args = (LAYOUT_VERSION, settings.partitions, settings.prefix)
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
                f"Redis holds data in {partitions} partitions, the setting says "
                f"{settings.partitions}",
                f"set it to {partitions}, or use another ANGARIUM_PREFIX",
            )
        if status_of(reply) == "created":
            known = self.keyspace.global_name(keys.KEYSPACES)
            await self.redis.call("SADD", known, settings.prefix, key=known)


def new_actor() -> str:
    """Who acts, in leases and in the journal: readable, and never the same twice."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
