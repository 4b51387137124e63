"""A chat whose answers take different times, and still leave in the order of the questions.

    python examples/conversations_chat/app.py

Three questions are asked at once. The answer to the second is ready first; it waits for those to
the first. The client acknowledges what it got, so the next may go.
"""

from __future__ import annotations

import asyncio

from angarium import Angarium
from angarium.conversations.instance import ConversationsInstance
from angarium.conversations.model import MessageOptions, OutgoingReply, TaskItem
from angarium.runtime.runtime import Runtime
from angarium.settings import load

app = Angarium()
shown: asyncio.Queue[str] = asyncio.Queue()


@app.reply_sender("chat")
async def send(reply: OutgoingReply) -> str:
    """Hand the reply to the client; answer with the id it will acknowledge."""
    print(f"{reply.request_id} → {reply.payload}", flush=True)
    ack_id = f"ack-{reply.response_id}"
    shown.put_nowait(ack_id)
    return ack_id


def text(words: str) -> TaskItem:
    return TaskItem(MessageOptions(words))


async def main() -> None:
    # An embedded Redis in the folder .angarium, unless ANGARIUM_REDIS_URL names another.
    async with Runtime.open(load()) as runtime:
        bridge = ConversationsInstance(runtime, app)
        await bridge.start()
        for question in ("first", "second", "third"):
            await bridge.request("anna", question, "chat")
        await bridge.reply("anna", "second", "2a", text("the answer that was ready at once"))
        await bridge.reply("anna", "third", "3a", text("the answer to the last question"))
        await bridge.reply("anna", "first", "1a", text("let me look that up"))
        await bridge.reply("anna", "first", "1b", text("here it is"))
        for _ in range(4):
            await bridge.acknowledge(await shown.get(), "anna")
        await bridge.stop(5)


if __name__ == "__main__":
    asyncio.run(main())
