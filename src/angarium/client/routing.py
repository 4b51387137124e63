"""Sends messages to the owner of a recipient key, and shows the owner."""

from __future__ import annotations

from typing import Any

from angarium.client.dispatch import encoded
from angarium.routing.service import RoutingService
from angarium.routing.store import KeyState
from angarium.runtime.runtime import Runtime
from angarium.runtime.text import check_text


class RoutingClient:
    def __init__(self, runtime: Runtime) -> None:
        self._service = runtime.store(RoutingService)

    async def send(self, recip_key: str, payload: Any) -> str:
        """Returns 'queued' if an instance owns the key, or 'kept' until one does.

        Bytes and text are sent as they are, all other values as JSON."""
        if isinstance(payload, str):
            payload = check_text(payload, "payload").encode()
        elif not isinstance(payload, bytes):
            payload = encoded(payload)
        return await self._service.send(recip_key, payload)

    async def show(self, recip_key: str) -> KeyState:
        """The key's owner and number of pending messages."""
        return await self._service.show(recip_key)
