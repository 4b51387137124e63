"""The application of a campaign: one message goes through every module.

A worker opens a request and starts a transaction under the message's id. Its first step asks
outside and sleeps until the switch is set; its second replies into the conversation, and the reply
goes to pickup. Everything may run twice. The inbox writes down what it got, in a file of its own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec

from angarium import Angarium
from angarium.routing.items import InboundMessage
from angarium.runtime.outbound import Outbound, OutboundFailed
from angarium.transactions import Outcome, Step
from tests.kit.history import History

PIPELINE = {"name": "campaign", "steps": [{"type": "ask"}, {"type": "reply"}]}
SWITCH = "answer"
ASK_AGAIN_S = 2.0
ASK_TIMEOUT_S = 2.0

app = Angarium()
_outside = os.environ.get("CAMPAIGN_OUTSIDE", "")
_folder = os.environ.get("CAMPAIGN_HISTORY")
_history = History(Path(_folder) / f"inbox-{os.getpid()}.jsonl") if _folder else None


@app.worker()
async def take(message: dict[str, Any]) -> dict[str, Any]:
    message_id = app.message_id
    assert message_id is not None
    await app.client.conversations.request(message["user"], message_id)
    started = await app.client.transactions.start(
        "campaign", {**message, "request": message_id}, webhook=f"{_outside}/webhook"
    )
    return {"name": message["name"], "transaction_id": started.transaction_id}


@app.step("ask")
async def ask(step: Step) -> Outcome:
    if SWITCH in step.switches:
        return step.succeeded()
    outbound = Outbound(allow_private=True, timeout_s=ASK_TIMEOUT_S)
    try:
        body = msgspec.json.encode({"transaction_id": step.transaction_id})
        await outbound.send("POST", f"{_outside}/ask", body, {"content-type": "application/json"})
    except OutboundFailed:
        pass  # it wakes and asks again
    finally:
        await outbound.close()
    return step.retry_later(seconds=ASK_AGAIN_S, switch=SWITCH)


@app.step("reply")
async def reply(step: Step) -> Outcome:
    data = step.data
    payload = {"name": data["name"]}
    await app.client.conversations.reply(data["user"], data["request"], step.key, payload)
    return step.succeeded({"name": data["name"]})


@app.inbox()
async def handle(message: InboundMessage) -> None:
    assert _history is not None
    _history.received(json.loads(message.payload)["ciphertext"], message.recip_key)
