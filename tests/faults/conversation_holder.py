"""One holder of replies, to be killed and paused: the role `conversations` and a sync manager.

The manager posts conversations, sends what it holds, and calls any method about any reply of any
holder. Each send is written down just before it happens. Run as
`python -m tests.faults.conversation_holder NAME HISTORY CONVERSATIONS`.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from contextlib import suppress
from pathlib import Path

import uvloop

from angarium.conversations import keys
from angarium.conversations.compat import MessageSyncManager, SyncMessageOptions
from angarium.conversations.errors import AckUnknown, ReplyUnknown, RequestUnknown
from angarium.conversations.instance import ConversationsInstance
from angarium.conversations.model import MinMessageInfo, OutgoingReply, TaskItem
from angarium.runtime import log
from angarium.runtime.application import Application
from angarium.runtime.runtime import Runtime
from angarium.settings import load
from tests.kit.history import History

GONE = (ReplyUnknown, AckUnknown, RequestUnknown)
REQUESTS, REPLIES = 3, 3
# The first holders and so many of their conversations are looked at by the others.
SEEN_HOLDERS, SEEN_CONVERSATIONS = 6, 40


def by(info: MinMessageInfo) -> SyncMessageOptions:
    return SyncMessageOptions(info.response_id, conversation_id=info.conversation_id)


class Holder:
    def __init__(self, name: str, runtime: Runtime, history: History) -> None:
        self.name = name
        self.runtime = runtime
        self.history = history
        self.draw = random.Random(name)
        self.manager = MessageSyncManager(runtime)
        self.held: list[MinMessageInfo] = []

    async def send(self, reply: OutgoingReply) -> str | None:
        """The sender of the role."""
        self.history.received(reply.response_id, reply.conversation_id)
        return f"ack-{reply.response_id}" if self.draw.random() < 0.1 else None

    async def post(self, number: int) -> None:
        """The first request is answered last, so all replies have one order."""
        manager, draw = self.manager, self.draw
        conversation = f"{self.name}-{number}"
        requests = [f"{conversation}.{place}" for place in range(REQUESTS + 1)]
        for request in requests:
            fresh = manager.get_init_default_values("web", conversation, request, 1)
            await manager.create_conversation_register(
                fresh.origin, conversation, request, "", fresh.request_timestamp
            )
        order = [request for request in requests[1:] for _ in range(REPLIES)]
        draw.shuffle(order)
        made = dict.fromkeys(requests, 0)
        for request in [*order, requests[0]]:
            response, made[request] = f"{request}.{made[request]}", made[request] + 1
            with suppress(RequestUnknown):
                accepted = await manager.mark_pending_conversation_register(
                    "", conversation, request, TaskItem(), "", response
                )
                self.history.sent(response, conversation)
                self.held.append(accepted.info)

    async def send_held(self) -> None:
        """Send what is next of the replies that this manager holds."""
        manager = self.manager
        for info in self.held[:50]:
            found = await manager.can_send_conversation_message(
                info.conversation_id, info.request_id, "", info.response_id
            )
            if found.status in ("wait_request", "wait_response"):
                if self.draw.random() < 0.2:
                    self.held.remove(info)
                    with suppress(*GONE):
                        await manager.set_awaited_by_response_id(by(info))
                continue
            self.held.remove(info)
            if found.status == "send":
                self.history.received(info.response_id, info.conversation_id)
                await self.report(info)

    async def report(self, info: MinMessageInfo) -> None:
        manager, ack = self.manager, f"ack-{info.response_id}"
        if self.draw.random() < 0.5:
            with suppress(*GONE):
                await manager.delete_conversation_message(by(info))
            return
        status = await manager.mark_sent_conversation_register(
            info.conversation_id, info.request_id, "", info.response_id, ack
        )
        if status == "sent" and self.draw.random() < 0.8:
            with suppress(*GONE):
                options = SyncMessageOptions(async_response_id=ack)
                await manager.delete_conversation_message(options)

    async def disturb(self) -> None:
        """Any other method, about a reply of any holder."""
        manager, draw = self.manager, self.draw
        conversation = f"h{draw.randrange(1, SEEN_HOLDERS)}-{draw.randrange(SEEN_CONVERSATIONS)}"
        first = await manager.get_first_conversation_message(conversation)
        if first is None:
            return
        info = first.info()
        partition = manager.store.partition_of(conversation)
        key = self.runtime.keyspace.name(keys.CONVERSATION_RESPONSE, partition, info.response_id)
        with suppress(*GONE):
            siblings = await manager.get_all_siblings(key)
            info = draw.choice(siblings.siblings)
            assert json.loads(manager.generate_unique_min_info_key(info))["cnId"] == conversation
            await manager.get_conversation_message(by(info), {"taskItem": 0})
            await manager.update_awaited_expires(info.response_id, "", conversation)
            chance = draw.random()
            if 0.2 <= chance < 0.32:
                # What is removed while its holder may send it lets later replies go.
                for each in siblings.siblings:
                    self.history.attempted(each.response_id, conversation)
            if chance < 0.1:
                await manager.set_awaited_by_response_id(by(info))
            elif chance < 0.2:
                await manager.set_awaited_by_request_id(conversation, info.request_id)
            elif chance < 0.22:
                await manager.remove_all_siblings(siblings)
            elif chance < 0.24:
                await manager.remove_request_message(by(info), draw.random() < 0.5)
            elif chance < 0.26:
                await manager.set_error_by_id(by(info))
            elif chance < 0.28:
                await manager.delete_conversation_register(None, "AWAITED", info.of_request())
            elif chance < 0.3:
                await manager.delete_conversation_message(by(info))
            elif chance < 0.32:
                await manager.remove_all_references_at_time(by(info), draw.choice([0, 1, 3]))

    async def work(self, conversations: int, end: Path) -> None:
        """Until the file `end` exists; from then on only what this manager holds is sent.

        The file NAME.posted says that this holder posts nothing more.
        """
        for number in range(conversations):
            if end.exists():
                break
            await self.post(number)
            await self.send_held()
            for _ in range(3):
                await self.disturb()
            taken = await self.manager.get_awaited_messages(self.draw.randrange(1, 9))
            self.held += [each.info for each in taken]
        end.with_name(f"{self.name}.posted").touch()
        while True:
            await self.send_held()
            if not end.exists():
                await self.disturb()
            await asyncio.sleep(0.05)


async def main(name: str, path: Path, conversations: int) -> None:
    log.configure()
    app, history = Application(), History(path)
    async with Runtime.open(load(), actor=name) as runtime:
        holder = Holder(name, runtime, history)
        app.reply_sender()(holder.send)
        instance = ConversationsInstance(runtime, app)
        await instance.start()
        print(json.dumps({"role": name, "ready": True, "ports": {}}), flush=True)
        await holder.work(conversations, path.parent / "end")


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
