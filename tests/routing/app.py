"""The application of the tests' inboxes: it writes down what it gets, and answers.

`HISTORY` names the file; the id of a message is its payload's `ciphertext`. A text that begins
with «fail» fails as often as it says, «poison» always does.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from angarium import Angarium
from angarium.routing.items import InboundMessage
from tests.kit.history import History

app = Angarium()
_folder = os.environ.get("HISTORY")
_history = History(Path(_folder) / f"inbox-{os.getpid()}.jsonl") if _folder else None
_failures: dict[str, int] = {}


@app.inbox()
async def handle(message: InboundMessage) -> str:
    text = json.loads(message.payload)["ciphertext"]
    word, _, times = text.partition(":")
    if word == "poison":
        raise ValueError("poison")
    if word == "fail" and _failures.setdefault(text, 0) < int(times):
        _failures[text] += 1
        raise ValueError("not yet")
    if _history is not None:
        _history.received(text, message.recip_key)
    return json.dumps({"answer": text, "transport": message.transport_type})
