"""The application of the dispatch benchmarks: a worker that answers with what it got."""

from __future__ import annotations

from typing import Any

from angarium import Angarium

app = Angarium()


@app.worker()
async def echo(message: dict[str, Any]) -> dict[str, Any]:
    return message
