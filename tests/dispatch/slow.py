"""A worker application whose function takes as long as the message says, and records each run.

A message with `exit` ends the process, as a crash in a C library does.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from angarium import Angarium

app = Angarium()
RUNS = "TEST_RUNS_FILE"


@app.worker
async def work(message: dict[str, Any]) -> dict[str, Any]:
    with Path(os.environ[RUNS]).open("a") as runs:
        runs.write(f"{message['n']}\n")
    if "exit" in message:
        os._exit(message["exit"])
    await asyncio.sleep(message["s"])
    return {"n": message["n"]}
