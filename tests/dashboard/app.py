"""The application of the dashboard's tests, with a function of every kind."""

from __future__ import annotations

import asyncio
from typing import Any

from angarium import Angarium, DoNotRetry
from angarium.conversations.errors import Fatal, Recoverable
from angarium.conversations.model import OutgoingReply
from angarium.routing.errors import ItemInvalid
from angarium.routing.items import InboundMessage
from angarium.transactions import Outcome, Step

app = Angarium()
# Ids of what was refused once; the second time it is handled.
refused: set[str] = set()


@app.worker()
async def work(message: dict[str, Any]) -> dict[str, Any]:
    if "fail" in message:
        raise ValueError(message["fail"])
    await asyncio.sleep(message.get("sleep_s", 0))
    return {"done": True}


@app.step("charge-card")
async def charge_card(step: Step) -> Outcome:
    await step.report_progress({"stage": "charged"})
    if step.data.get("broken"):
        raise DoNotRetry("the terminal is broken")
    if step.data.get("refused"):
        return step.failed("the card was refused")
    return step.succeeded(step.data)


@app.step("await-bank")
async def await_bank(step: Step) -> Outcome:
    if step.data.get("quick") or "bank" in step.switches:
        return step.succeeded({**step.data, "paid": True})
    return step.retry_later(seconds=3_600, switch="bank")


@app.step("ship")
async def ship(step: Step) -> Outcome:
    await asyncio.sleep(step.data.get("sleep_s", 0))
    return step.succeeded({"shipped": True})


@app.reply_sender("chat")
async def chat(reply: OutgoingReply) -> str | None:
    """A payload may ask for an acknowledgement by an id, for a failure, or for one for good."""
    payload = reply.payload or {}
    if payload.get("refused") and reply.response_id not in refused:
        refused.add(reply.response_id)
        raise Fatal(payload["refused"])
    if payload.get("fail"):
        raise Recoverable("the client is not connected")
    return payload.get("ack")


@app.inbox()
async def handle(message: InboundMessage) -> None:
    if b"refused" in message.payload and message.id not in refused:
        refused.add(message.id)
        raise ItemInvalid("no wallet for this key")
