"""One process of the role `conversations` with its own client, to be killed and paused.

The client writes down each reply it gets, asks for ACKs of some, and loses some of those. Run as
`python -m tests.faults.conversations_process NAME HISTORY`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from pathlib import Path

import uvloop

from angarium.conversations.errors import AckUnknown
from angarium.conversations.instance import ConversationsInstance
from angarium.conversations.model import OutgoingReply
from angarium.runtime import log
from angarium.runtime.application import Application
from angarium.runtime.errors import AngariumError
from angarium.runtime.runtime import Runtime
from angarium.settings import load
from tests.kit.history import History

ASKED = 0.25  # of the replies get an ACK
LOST = 0.02  # of the ACKs never arrive


async def main(name: str, path: Path) -> None:
    log.configure()
    history, draw, app = History(path), random.Random(name), Application()
    acks: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    @app.reply_sender()
    async def send(reply: OutgoingReply) -> str | None:
        history.received(reply.response_id, reply.conversation_id)
        if draw.random() >= ASKED:
            return None
        ack_id = f"{name}-{reply.response_id}"
        if draw.random() >= LOST:
            acks.put_nowait((ack_id, reply.conversation_id))
        return ack_id

    async with Runtime.open(load(), actor=name) as runtime, asyncio.TaskGroup() as group:
        instance = ConversationsInstance(runtime, app)
        await instance.start()

        async def acknowledge() -> None:
            while True:
                ack_id, conversation_id = await acks.get()
                with contextlib.suppress(AckUnknown):  # too late: it counted as sent
                    try:
                        await instance.acknowledge(ack_id, conversation_id)
                    except AckUnknown:
                        raise
                    except AngariumError as error:
                        print(error, file=sys.stderr)

        for _ in range(20):
            group.create_task(acknowledge())
        print(json.dumps({"role": name, "ready": True, "ports": {}}), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], Path(sys.argv[2])))
