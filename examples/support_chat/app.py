"""A support chat through the modules: a worker, a transaction with two steps, replies to pickup.

angarium up app:app                 # in this folder, in one terminal
python chat.py                      # in another: asks two questions and picks up the answers
"""

from __future__ import annotations

from typing import Any

from angarium import Angarium
from angarium.transactions import Outcome, Step

PIPELINE = {"name": "support", "steps": [{"type": "greet"}, {"type": "answer"}]}

app = Angarium()


@app.worker()
async def take_question(message: dict[str, Any]) -> dict[str, Any]:
    """May run twice after a crash: request and transaction go by the message's id."""
    request_id = app.message_id
    assert request_id is not None
    await app.client.conversations.request(message["user"], request_id)
    started = await app.client.transactions.start("support", {**message, "request": request_id})
    return {"transaction_id": started.transaction_id}


@app.step("greet")
async def greet(step: Step) -> Outcome:
    await reply(step, f"We are looking into «{step.data['question']}».")
    return step.succeeded()


@app.step("answer")
def answer(step: Step) -> Outcome:
    """A plain function runs in a thread and has a client without a loop."""
    data = step.data
    app.sync_client.conversations.reply(data["user"], data["request"], step.key, "It is 42.")
    return step.succeeded({"answer": 42})


async def reply(step: Step, text: str) -> None:
    """The key of the step is the reply's id: a step that runs twice replies once."""
    data = step.data
    await app.client.conversations.reply(data["user"], data["request"], step.key, text)
