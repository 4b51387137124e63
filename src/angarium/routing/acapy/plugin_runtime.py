"""The runtime of one agent, shared by its transports and its events."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any
from uuid import uuid4

from angarium.redis.options import Durability, OptionNames, RedisOptions
from angarium.routing import keys
from angarium.routing.acapy.config import SECTION, PluginConfig, read_config
from angarium.routing.limits import RoutingLimits
from angarium.routing.outbound_store import OutboundStore
from angarium.routing.store import RoutingRules, RoutingStore
from angarium.runtime.keyspace import Keyspace
from angarium.runtime.limits import MIB
from angarium.runtime.runtime import Runtime, RuntimeOptions, recorded_options

# Used when no role has recorded its own.
JOURNAL_BYTES_MAX = 256 * MIB


class PluginRuntime:
    """Opens with the first use; closes when the last transport stops."""

    def __init__(self, config: PluginConfig) -> None:
        self.config = config
        self.limits = RoutingLimits()
        self.uid = str(uuid4())
        self._stack = AsyncExitStack()
        self._lock = asyncio.Lock()
        self._users = 0
        self._runtime: Runtime | None = None
        self._routing: RoutingStore | None = None
        self._outbound: OutboundStore | None = None

    @classmethod
    def of(cls, profile: Any) -> PluginRuntime:
        """The agent's own; the profiles of all its wallets share it."""
        plugin = profile.inject_or(cls)
        if plugin is None:
            plugin = cls(read_config(profile.settings))
            profile.context.injector.bind_instance(cls, plugin)
        return plugin  # type: ignore[no-any-return]

    async def enter(self) -> None:
        """A transport starts; the runtime stays open until it leaves."""
        self._users += 1
        await self.runtime()

    async def leave(self) -> None:
        """A transport stops. The last one closes the runtime: transports stop at the same time, and
        the inbound one still gives messages back.
        """
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
                rules = RoutingRules(layout=config.layout)
                self._routing = RoutingStore(self._runtime, rules)
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


async def _runtime_options(config: PluginConfig, limits: RoutingLimits) -> RuntimeOptions:
    """The section's values; for those it does not set, the roles' values from Redis."""
    names = {
        key: config.topic_prefix + key.name.removeprefix(keys.TOPIC_PREFIX)
        for key in keys.KEYS
        if key.name.startswith(keys.TOPIC_PREFIX)
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
