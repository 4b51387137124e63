"""An application for tests: a worker that returns its message, or sleeps or fails on request."""

from __future__ import annotations

import asyncio
from typing import Any

from angarium import Angarium

app = Angarium()


@app.worker()
async def echo(message: dict[str, Any]) -> dict[str, Any]:
    if "sleep_s" in message:
        await asyncio.sleep(message["sleep_s"])
    if "fail" in message:
        raise ValueError(message["fail"])
    return message
