"""A worker application whose function takes as long as the message says, and records each run."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from angarium import Angarium

app = Angarium()
RUNS = "TEST_RUNS_FILE"


@app.worker(concurrency=100)
async def work(message: dict[str, Any]) -> dict[str, Any]:
    with Path(os.environ[RUNS]).open("a") as runs:
        runs.write(f"{message['n']}\n")
    await asyncio.sleep(message["s"])
    return {"n": message["n"]}
