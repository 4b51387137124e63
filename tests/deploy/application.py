"""An application with one function of each kind, so that every role runs."""

from __future__ import annotations

from typing import Any

from angarium import Angarium

app = Angarium()


@app.worker()
async def work(message: Any) -> Any:
    return message


@app.step("noop")
async def step(state: Any) -> Any:
    return state


@app.inbox()
async def inbox(message: Any) -> None:
    pass
