"""The other process of a hand-over: holds the replies named on stdin, and tells when each left.

Started by `benchmarks.conversations`; settings come from the environment.
"""

from __future__ import annotations

import asyncio
import sys
import time

import uvloop

from angarium.conversations.instance import ConversationsInstance
from angarium.conversations.model import OutgoingReply, TaskItem
from angarium.runtime.application import Application
from angarium.runtime.runtime import Runtime
from angarium.settings import load


async def main() -> None:
    app = Application()

    @app.reply_sender()
    async def send(reply: OutgoingReply) -> str:
        print("sent", time.monotonic_ns(), flush=True)
        return f"ack-{reply.response_id}"

    async with Runtime.open(load()) as runtime:
        bridge = ConversationsInstance(runtime, app)
        await bridge.start()
        print("ready", flush=True)
        while line := (await asyncio.to_thread(sys.stdin.readline)).split():
            conversation_id, request_id, response_id = line
            await bridge.reply(conversation_id, request_id, response_id, TaskItem())
            while bridge.queue.parked == 0:
                await asyncio.sleep(0.0005)
            print("parked", flush=True)
        await bridge.stop(5)


if __name__ == "__main__":
    uvloop.run(main())
