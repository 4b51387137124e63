"""The response to a poll. It counts as a notification once it was written to an open connection.

The response is written first and recorded second. A process that dies in between leaves the
webhook scheduled: the client is notified twice rather than never.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from angarium.runtime.http_api import JSON


class PollResponse(Response):
    """Calls `record` when all of `value` was written and the client was still connected."""

    def __init__(self, value: object, record: Callable[[], Awaitable[None]]) -> None:
        super().__init__(msgspec.json.encode(value), media_type=JSON)
        self._record = record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":  # the server sends no body
            return await super().__call__(scope, receive, send)
        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        await send(start)
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        # The server silently drops the body when the client has disconnected. It reports the
        # disconnect only if it is asked before the response is complete.
        written = not await Request(scope, receive).is_disconnected()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        if written:
            await self._record()
        return None
