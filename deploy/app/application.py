"""One function of each kind, so that every role runs as it stands. Put yours here."""

from __future__ import annotations

from typing import Any

from angarium import Angarium
from angarium.transactions import Outcome, Step

app = Angarium()


@app.worker()
async def work(message: Any) -> Any:
    return {"echo": message}


@app.step("echo")
async def echo(step: Step) -> Outcome:
    return step.succeeded(step.data)


@app.inbox()
async def receive(message: Any) -> None:
    """Handled when this returns; an answer would go to a sender that waits."""
