"""An application whose functions use its clients."""

from __future__ import annotations

from typing import Any

from angarium import Angarium
from angarium.transactions import Outcome, Step

app = Angarium()


@app.worker()
async def start(message: dict[str, Any]) -> dict[str, Any]:
    assert app.message_id is not None
    started = await app.client.transactions.start("p", message)
    again = "refused"
    if message.get("twice"):
        try:
            await app.client.transactions.start("p", message)
        except Exception as error:
            again = type(error).__name__
    return {"transaction": started.transaction_id, "duplicate": started.duplicate, "again": again}


@app.step("plain")
def plain(step: Step) -> Outcome:
    """A synchronous function runs in a thread and uses the synchronous client."""
    client = app.sync_client
    client.conversations.request("anna", step.key)
    status = client.conversations.reply("anna", step.key, step.key, {"n": 1})
    repeat = client.conversations.reply("anna", step.key, step.key, {"n": 1})
    return step.succeeded({"status": status, "repeat": repeat, "trace": app.traceparent})
