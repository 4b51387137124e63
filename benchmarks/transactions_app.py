"""The steps that benchmarks/transactions.py runs."""

from __future__ import annotations

import asyncio

from angarium import Angarium
from angarium.transactions import Outcome, Step

app = Angarium()


@app.step("job")
async def job(step: Step) -> Outcome:
    return step.succeeded({"ok": True})


@app.step("pause")
async def pause(step: Step) -> Outcome:
    """The known implementation's measurement has a short delay in each of its two steps."""
    await asyncio.sleep(step.parameters["seconds"])
    return step.succeeded({"ok": True})
