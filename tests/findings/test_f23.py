"""F23: a new date for a held reply made it due at once, and a second process sent it too."""

from __future__ import annotations

import asyncio

from angarium.conversations.compat import MessageSyncManager, SyncMessageOptions
from angarium.conversations.model import OutgoingReply, TaskItem
from angarium.runtime.application import Application
from tests.conversations.harness import DEADLINE_S, instance
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime


async def test_a_reply_that_is_being_sent_gets_a_new_date_and_no_second_sender(
    any_redis_url: str,
) -> None:
    sent: list[str] = []
    may_end = asyncio.Event()
    app = Application()

    @app.reply_sender()
    async def send(reply: OutgoingReply) -> None:
        sent.append(reply.response_id)
        await may_end.wait()

    async with (
        instance(any_redis_url, app) as role,
        instance(any_redis_url, app, prefix=role.runtime.settings.prefix) as second,
        sample_runtime(any_redis_url, prefix=role.runtime.settings.prefix) as runtime,
    ):
        outside = MessageSyncManager(runtime)
        await role.request("c", "A", "web")
        await role.reply("c", "A", "a1", TaskItem())
        await eventually(lambda: sent == ["a1"], DEADLINE_S)
        for _ in range(20):
            assert await outside.update_awaited_expires("a1") == "held"
            assert await outside.get_awaited_messages(10) == []
            second.agent.wake()
        options = SyncMessageOptions("a1")
        assert await outside.set_awaited_by_response_id(options) == "held"
        assert (await outside.can_send_conversation_message("c", "A")).status == "gone"
        may_end.set()

        async def ended() -> bool:
            return await outside.in_flight() == (0, 0)

        await eventually(ended, DEADLINE_S)
        assert sent == ["a1"]


async def test_a_manager_renews_its_own_hold(any_redis_url: str) -> None:
    async with (
        sample_runtime(any_redis_url) as runtime,
        sample_runtime(any_redis_url, prefix=runtime.settings.prefix) as another,
    ):
        holder, other = MessageSyncManager(runtime), MessageSyncManager(another)
        await holder.create_conversation_register("web", "c", "A")
        await holder.mark_pending_conversation_register("", "c", "A", TaskItem(), "", "a1")
        assert await holder.update_awaited_expires("a1") == "renewed"
        assert await other.get_awaited_messages(10) == []
        assert (await holder.can_send_conversation_message("c", "A")).status == "send"
