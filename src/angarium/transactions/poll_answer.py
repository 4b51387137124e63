"""The answer to a poll. It counts as notified once it was written to a living connection.

First the answer is written, then it is recorded. A process that dies in between leaves the webhook
on its list: the client is notified twice rather than never.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from angarium.runtime.http_api import JSON


class PollAnswer(Response):
    """`record` is called when all of `value` was written and the client was still there."""

    def __init__(self, value: object, record: Callable[[], Awaitable[None]]) -> None:
        super().__init__(msgspec.json.encode(value), media_type=JSON)
        self._record = record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":  # the server leaves the body out
            return await super().__call__(scope, receive, send)
        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        await send(start)
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        # The server drops what it is to send to a client that has gone, and only says so when it
        # is asked before the answer is complete. Asking lets it look at its connections once more.
        written = not await Request(scope, receive).is_disconnected()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        if written:
            await self._record()
        return None
