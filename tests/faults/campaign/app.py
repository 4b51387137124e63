"""The application of a campaign: one message goes through every module.

A worker opens a request and starts a transaction under the message's id. Its first step asks
outside and sleeps until the switch is set; its second is a plain function that blocks; its last
replies into the conversation, and the reply goes to pickup. Everything may run twice. The inbox
writes down what it got, in a file of its own.

Some functions take longer than every lease of the campaign, as ordinary code does. The new version
of the application (`CAMPAIGN_VERSION=2`) has one step more, and starts pipelines that use it while
nodes of the old version still run.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import zlib
from pathlib import Path
from typing import Any

import msgspec

from angarium import Angarium
from angarium.routing.items import InboundMessage
from angarium.runtime.outbound import Outbound, OutboundFailed
from angarium.transactions import Outcome, Step
from tests.kit.history import History

OLD: dict[str, Any] = {
    "name": "campaign",
    "steps": [{"type": "ask"}, {"type": "weigh"}, {"type": "reply"}],
}
NEW: dict[str, Any] = {
    "name": "campaign-signed",
    "steps": [{"type": "ask"}, {"type": "sign"}, {"type": "weigh"}, {"type": "reply"}],
}
# Of so many messages one is slow: longer than leases and time-outs, which are 2 to 4 s here.
SLOW_EVERY = 15
SLOW_S = 5.0
BLOCKED_S = 0.02
SWITCH = "answer"
ASK_AGAIN_S = 2.0
ASK_TIMEOUT_S = 2.0

app = Angarium()
_version = int(os.environ.get("CAMPAIGN_VERSION", "1"))
_outside = os.environ.get("CAMPAIGN_OUTSIDE", "")
_folder = os.environ.get("CAMPAIGN_HISTORY")
_history = History(Path(_folder) / f"inbox-{os.getpid()}.jsonl") if _folder else None


@app.worker()
async def take(message: dict[str, Any]) -> dict[str, Any]:
    message_id = app.message_id
    assert message_id is not None
    await app.client.conversations.request(message["user"], message_id)
    if _slow(message["name"], "take"):
        await asyncio.sleep(SLOW_S)
    pipeline = NEW if _version > 1 else OLD
    started = await app.client.transactions.start(
        pipeline["name"], {**message, "request": message_id}, webhook=f"{_outside}/webhook"
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


@app.step("weigh")
def weigh(step: Step) -> Outcome:
    """Blocks its thread, as a plain function does."""
    time.sleep(SLOW_S if _slow(step.data["name"], "weigh") else BLOCKED_S)
    return step.succeeded()


if _version > 1:

    @app.step("sign")
    async def sign(step: Step) -> Outcome:
        return step.succeeded()


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


def _slow(name: str, place: str) -> bool:
    """The same messages each time, so that one that runs again is slow again."""
    return zlib.crc32(f"{place}/{name}".encode()) % SLOW_EVERY == 0
