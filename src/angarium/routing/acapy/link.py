"""The agent's connection to Redis, shared by its transports and its events."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

from angarium.routing.acapy.config import PluginConfig, read_config
from angarium.routing.floor import PlainFloor, PlainSettings
from angarium.routing.outbound_store import OutboundStore
from angarium.routing.store import RoutingStore, Rules
from angarium.runtime.limits import Limits


class Link:
    """Opened by whoever needs it first, closed when the agent stops."""

    def __init__(self, config: PluginConfig) -> None:
        self.config = config
        self.limits = Limits()
        self.uid = str(uuid4())
        self._stack = AsyncExitStack()
        self._lock = asyncio.Lock()
        self._users = 0
        self._floor: PlainFloor | None = None
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
        await self.floor()

    async def leave(self) -> None:
        """The last one closes it: transports stop side by side, and mail has to be given back."""
        self._users = max(0, self._users - 1)
        if self._users == 0:
            await self.close()

    async def floor(self) -> PlainFloor:
        async with self._lock:
            if self._floor is None:
                config = self.config
                settings = PlainSettings(
                    redis_url=config.redis_url,
                    actor=f"acapy-{socket.gethostname()}-{os.getpid()}-{self.uid[:6]}",
                    prefix=config.prefix,
                    partitions=config.partitions,
                    topic_prefix=config.topic_prefix,
                )
                self._floor = await self._stack.enter_async_context(PlainFloor.open(settings))
                rules = Rules(layout=config.layout)
                self._routing = RoutingStore(self._floor, rules, self.limits)
                self._outbound = OutboundStore(self._floor, config.layout)
            return self._floor

    async def routing(self) -> RoutingStore:
        await self.floor()
        assert self._routing is not None
        return self._routing

    async def outbound(self) -> OutboundStore:
        await self.floor()
        assert self._outbound is not None
        return self._outbound

    async def close(self) -> None:
        async with self._lock:
            await self._stack.aclose()
            self._floor = None
