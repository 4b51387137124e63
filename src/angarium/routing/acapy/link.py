"""The agent's connection to Redis, shared by its transports and its events."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any
from uuid import uuid4

from angarium.redis.options import Durability, OptionNames, RedisOptions
from angarium.routing.acapy.config import SECTION, PluginConfig, read_config
from angarium.routing.outbound_store import OutboundStore
from angarium.routing.store import RoutingStore, Rules
from angarium.runtime import keyspace as keys
from angarium.runtime.keyspace import Keyspace
from angarium.runtime.limits import MIB, Limits
from angarium.runtime.runtime import Runtime, RuntimeOptions, recorded_options

# Until an Angarium process has written down its own.
JOURNAL_BYTES_MAX = 256 * MIB


class Link:
    """Opened by whoever needs it first, closed when the agent stops."""

    def __init__(self, config: PluginConfig) -> None:
        self.config = config
        self.limits = Limits()
        self.uid = str(uuid4())
        self._stack = AsyncExitStack()
        self._lock = asyncio.Lock()
        self._users = 0
        self._runtime: Runtime | None = None
        self._routing: RoutingStore | None = None
        self._outbound: OutboundStore | None = None

    @classmethod
    def of(cls, profile: Any) -> Link:
        """The one of this agent; all its wallets' profiles share the root's settings."""
        link = profile.inject_or(cls)
        if link is None:
            link = cls(read_config(profile.settings))
            profile.context.injector.bind_instance(cls, link)
        return link  # type: ignore[no-any-return]

    async def enter(self) -> None:
        """One transport more that needs the connection until it leaves."""
        self._users += 1
        await self.runtime()

    async def leave(self) -> None:
        """The last one closes it: transports stop side by side, and mail has to be given back."""
        self._users = max(0, self._users - 1)
        if self._users == 0:
            await self.close()

    async def runtime(self) -> Runtime:
        async with self._lock:
            if self._runtime is None:
                config = self.config
                options = await _runtime_options(config, self.limits)
                actor = f"acapy-{socket.gethostname()}-{os.getpid()}-{self.uid[:6]}"
                opened = Runtime.open(options, actor=actor)
                self._runtime = await self._stack.enter_async_context(opened)
                rules = Rules(layout=config.layout)
                self._routing = RoutingStore(self._runtime, rules, self.limits)
                self._outbound = OutboundStore(self._runtime, config.layout)
            return self._runtime

    async def routing(self) -> RoutingStore:
        await self.runtime()
        assert self._routing is not None
        return self._routing

    async def outbound(self) -> OutboundStore:
        await self.runtime()
        assert self._outbound is not None
        return self._outbound

    async def close(self) -> None:
        async with self._lock:
            await self._stack.aclose()
            self._runtime = None


async def _runtime_options(config: PluginConfig, limits: Limits) -> RuntimeOptions:
    """An agent can't have our settings: what its section does not say is what Redis says."""
    names = {
        key: config.topic_prefix + key.name.removeprefix(keys.TOPIC_PREFIX)
        for key in keys.KEYS
        if key.module == "routing" and key.name.startswith(keys.TOPIC_PREFIX)
    }
    redis = RedisOptions(
        config.redis_url,
        client_name="angarium-acapy",
        names=OptionNames(f"{SECTION}.connection.connection_url", f"{SECTION}.durability"),
    )
    options = RuntimeOptions(
        redis, Keyspace(config.prefix, config.partitions, names), JOURNAL_BYTES_MAX, limits
    )
    options = await recorded_options(options)
    if config.durability is not None:
        redis = replace(options.redis, durability=Durability(config.durability))
        options = replace(options, redis=redis)
    if config.journal_bytes_max is not None:
        options = replace(options, journal_bytes_max=config.journal_bytes_max)
    return options
