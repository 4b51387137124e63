"""An application whose steps `kill` and `plain_kill` take the poison that their data names."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from angarium import Angarium
from angarium.transactions import Step
from tests.faults.poison import take_poison

app = Angarium()


@app.step("kill")
async def kill(step: Step) -> None:
    await asyncio.sleep(0.05)
    take_poison(step.data["how"])


@app.step("plain_kill")
def plain_kill(step: Step) -> None:
    take_poison(step.data["how"])


@app.step("work")
async def work(step: Step) -> dict[str, Any]:
    await asyncio.sleep(step.data.get("pause_s", 0))
    return {"pid": os.getpid()}
