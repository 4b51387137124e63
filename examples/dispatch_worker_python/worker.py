"""A worker with Angarium's own SDK: a function from a message to a result.

    angarium serve worker --app worker:app          # the async function
    angarium serve worker --app worker:app_of_sync  # the plain one, run in threads

The result's fields stand in the stream `messages:processed` exactly once. A function that raises
refuses its message, with the error as the reason; after its last delivery the message is a dead
letter, to be seen with `angarium dispatch dead list`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from angarium import Angarium

app = Angarium()
app_of_sync = Angarium()


@app.worker(concurrency=200)
async def price(order: dict[str, Any]) -> dict[str, Any]:
    """Many of these wait at the same time, so it may await whatever it needs."""
    await asyncio.sleep(0.01)  # a call to a service, a query
    return {**order, "total": order["amount"] * order["unit_price"]}


@app_of_sync.worker(concurrency=8)
def price_slowly(order: dict[str, Any]) -> dict[str, Any]:
    """Eight threads; for libraries that block. It may take as long as it needs."""
    time.sleep(0.01)
    return {**order, "total": order["amount"] * order["unit_price"]}
