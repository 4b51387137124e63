"""An instance that says what it got, and answers callers that wait.

angarium serve inbox --app app:app
"""

from __future__ import annotations

import os
import sys

from angarium import Angarium
from angarium.routing.items import InboundMessage

app = Angarium()


@app.inbox()
async def handle(message: InboundMessage) -> dict[str, str]:
    sys.stdout.write(
        f"instance {os.getpid()} got {len(message.payload)} bytes for {message.recip_key}\n"
    )
    return {"handled_by": str(os.getpid())}
