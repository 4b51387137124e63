"""The demo's application: a support chat that sends two replies to every question.

A worker opens a request in the user's conversation and starts a transaction. The first step
replies that somebody is looking into the question. The second step asks an external expert, sleeps
until the expert calls back, and replies with the answer. Each function may run twice: the message's
id identifies the request and the transaction, and the step's key identifies a reply.
"""

from __future__ import annotations

from typing import Any

import msgspec

from angarium import Angarium
from angarium.runtime.outbound import Outbound, OutboundFailed
from angarium.transactions import Outcome, Step

PIPELINE = {"name": "support", "steps": [{"type": "greet"}, {"type": "consult"}]}
REPLIES_PER_MESSAGE = 2
SWITCH = "expert"
# The step asks again if the expert has not called back by then.
ASK_AGAIN_S = 5.0
EXPERT_TIMEOUT_S = 5.0

app = Angarium()


@app.worker()
async def take_question(message: dict[str, Any]) -> dict[str, Any]:
    request_id = app.message_id
    assert request_id is not None
    await app.client.conversations.request(message["user"], request_id)
    started = await app.client.transactions.start("support", {**message, "request": request_id})
    return {"user": message["user"], "transaction_id": started.transaction_id}


@app.step("greet")
async def greet(step: Step) -> Outcome:
    await _reply(step, f"We are looking into question {step.data['number']}.")
    return step.succeeded()


@app.step("consult")
async def consult(step: Step) -> Outcome:
    answer = step.switches.get(SWITCH)
    if answer is None:
        await _ask_expert(step)
        return step.retry_later(seconds=ASK_AGAIN_S, switch=SWITCH)
    await _reply(step, answer)
    return step.succeeded({"answer": answer})


async def _reply(step: Step, text: str) -> None:
    data = step.data
    await app.client.conversations.reply(
        data["user"],
        data["request"],
        step.key,
        {"question": data["number"], "text": text},
        address={"pushToken": data.get("push_token")},
    )


async def _ask_expert(step: Step) -> None:
    outbound = Outbound(allow_private=True, timeout_s=EXPERT_TIMEOUT_S)
    question = {"transaction_id": step.transaction_id, "question": step.data["number"]}
    headers = {"content-type": "application/json", "idempotency-key": step.key}
    if app.traceparent is not None:
        headers["traceparent"] = app.traceparent
    try:
        await outbound.send("POST", step.data["expert"], msgspec.json.encode(question), headers)
    except OutboundFailed:
        return  # the step wakes up and asks again
    finally:
        await outbound.close()
