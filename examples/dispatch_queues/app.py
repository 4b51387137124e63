"""Workers of several queues in one application.

    angarium serve worker --app app:app
    angarium publish '{"n": 1}'                    # for `other`
    angarium publish --queue emails '{"n": 2}'     # for `send_email`
    angarium dispatch status                                 # what waits, and for whom

Each function has its own slots and retries. A message of a queue that no running worker has waits
until one comes.
"""

from __future__ import annotations

from typing import Any

from angarium import Angarium

app = Angarium()


@app.worker
async def other(message: dict[str, Any]) -> dict[str, Any]:
    return {"n": message["n"], "by": "other"}


@app.worker("emails", concurrency=3)
async def send_email(message: dict[str, Any]) -> dict[str, Any]:
    return {"n": message["n"], "by": "emails"}


@app.worker("reports", retries=1)
def make_report(message: dict[str, Any]) -> dict[str, Any]:
    if message.get("fail"):
        raise ValueError("no report")
    return {"n": message["n"], "by": "reports"}
