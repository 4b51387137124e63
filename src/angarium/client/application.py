"""The application object with its clients: `from angarium import Angarium`.

`runtime.application` collects the functions and knows no module; this class adds the modules'
clients. In a role's process the clients are open and use its runtime. Elsewhere, enter them first:
`async with app.client as client`, or `with app.sync_client as client`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from angarium.runtime.application import Application
from angarium.runtime.trace import CURRENT_WORK

if TYPE_CHECKING:
    from angarium.client.client import Client
    from angarium.client.sync import SyncClient
    from angarium.runtime.runtime import Runtime


class Angarium(Application):
    """Create one per application, `app = Angarium()`, and decorate functions with it."""

    def __init__(self) -> None:
        super().__init__()
        self._client: Client | None = None
        self._sync_client: SyncClient | None = None

    @property
    def client(self) -> Client:
        """Open in functions that a role runs; elsewhere `async with app.client as client`."""
        if self._client is None:
            from angarium.client.client import Client

            self._client = Client()
        return self._client

    @property
    def sync_client(self) -> SyncClient:
        """For synchronous functions and scripts: `with app.sync_client as client`."""
        if self._sync_client is None:
            from angarium.client.sync import SyncClient

            self._sync_client = SyncClient()
        return self._sync_client

    @property
    def message_id(self) -> str | None:
        """The id of the message that the worker's function processes."""
        handling = CURRENT_WORK.get()
        return None if handling is None else handling.message_id

    @property
    def traceparent(self) -> str | None:
        """The trace of the current work, to pass to other services."""
        handling = CURRENT_WORK.get()
        return None if handling is None else handling.trace.header

    def bind(self, runtime: Runtime) -> None:
        """Called by the process that runs this application's functions."""
        from angarium.client.client import Client
        from angarium.client.sync import SyncClient

        self._client = Client(runtime=runtime)
        self._sync_client = SyncClient(self._client, asyncio.get_running_loop())

    async def unbind(self) -> None:
        client, self._client, self._sync_client = self._client, None, None
        if client is not None:
            await client.close()
