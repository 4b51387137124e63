"""Sends messages to the owner of a recipient key, and shows the owner."""

from __future__ import annotations

from angarium.routing.service import RoutingService
from angarium.routing.store import KeyState
from angarium.runtime.runtime import Runtime


class RoutingClient:
    def __init__(self, runtime: Runtime) -> None:
        self._service = runtime.store(RoutingService)

    async def send(self, recip_key: str, payload: bytes) -> str:
        """Returns 'queued' if an instance owns the key, or 'kept' until one does."""
        return await self._service.send(recip_key, payload)

    async def show(self, recip_key: str) -> KeyState:
        """The key's owner and number of pending messages."""
        return await self._service.show(recip_key)
