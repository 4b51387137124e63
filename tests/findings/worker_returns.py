"""Applications for F53: worker functions that return nothing, or something that is no result."""

from __future__ import annotations

import dataclasses
from typing import Any

from angarium import Angarium

app = Angarium()
app_of_sync = Angarium()
app_of_lists = Angarium()


@dataclasses.dataclass
class Priced:
    total: int


@app.worker()
async def store(message: dict[str, Any]) -> None:
    """What most people write first: the work is the effect, and there is no return statement."""
    assert message["n"] >= 0


@app_of_sync.worker()
def store_plainly(message: dict[str, Any]) -> None:
    assert message["n"] >= 0


@app_of_lists.worker()
async def no_result(message: dict[str, Any]) -> Any:
    return Priced(message["n"]) if message["n"] % 2 else [message["n"]]
