"""Sends messages to the owner of a recipient key, and shows the owner."""

from __future__ import annotations

from angarium.routing.role_settings import routing_store
from angarium.routing.store import KeyState
from angarium.runtime.errors import InputInvalid, LimitExceeded
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import status_of
from angarium.runtime.text import check_text


class RoutingClient:
    def __init__(self, runtime: Runtime) -> None:
        settings = runtime.settings
        self._store = runtime.store(routing_store)
        self._bytes_max = settings.limits.http_body_bytes_max
        self._key_bytes_max = settings.limits.id_bytes_max

    async def send(self, recip_key: str, payload: bytes) -> str:
        """Returns 'queued' if an instance owns the key, or 'kept' until one does."""
        if not 0 < len(check_text(recip_key, "recip_key").encode()) <= self._key_bytes_max:
            raise InputInvalid(f"a recipient key has 1 to {self._key_bytes_max} bytes")
        if len(payload) > self._bytes_max:
            raise LimitExceeded("http_body_bytes_max", len(payload), self._bytes_max)
        return status_of(await self._store.process_payload_recip_key(recip_key, payload, None))

    async def show(self, recip_key: str) -> KeyState:
        """The key's owner and number of pending messages."""
        return await self._store.show(check_text(recip_key, "recip_key"))
