"""An application as users write it: a plain function that takes its time; «poison:…» ends it.

`HISTORY` names the folder of its history, `SLOW_S` the seconds that each message takes.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from angarium import Angarium
from angarium.routing.items import InboundMessage
from tests.faults.poison import take_poison
from tests.kit.history import History

app = Angarium()
_history = History(Path(os.environ["HISTORY"]) / f"inbox-{os.getpid()}.jsonl")


@app.inbox(retries=2)
def handle(message: InboundMessage) -> None:
    text = json.loads(message.payload)["ciphertext"]
    if text.startswith("poison:"):
        take_poison(text.removeprefix("poison:"))
    time.sleep(float(os.environ["SLOW_S"]))
    _history.received(text, message.recip_key)
