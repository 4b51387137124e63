"""An application whose step `kill` ends the process of its node, in the way that its data says."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from angarium import Angarium
from angarium.transactions import Step

app = Angarium()


def _end(how: str) -> None:
    if how == "exit":
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


@app.step("kill")
async def kill(step: Step) -> None:
    await asyncio.sleep(0.05)
    _end(step.data["how"])


@app.step("plain_kill")
def plain_kill(step: Step) -> None:
    _end(step.data["how"])


@app.step("work")
async def work(step: Step) -> dict[str, Any]:
    await asyncio.sleep(step.data.get("pause_s", 0))
    return {"pid": os.getpid()}
