"""F24: a manager that is used alone left a list behind that grew without bound."""

from __future__ import annotations

from angarium.conversations import keys
from angarium.conversations.compat import MessageSyncManager, SyncMessageOptions
from angarium.conversations.model import TaskItem
from tests.conversations.harness import harness


async def test_a_manager_used_alone_leaves_nothing_behind(redis_url: str) -> None:
    async with harness(redis_url) as it:
        manager = MessageSyncManager(it.runtime)
        for number in range(50):
            await manager.create_conversation_register("web", "c", f"r{number}")
            await manager.mark_pending_conversation_register(
                "", "c", f"r{number}", TaskItem(), "", f"s{number}"
            )
            found = await manager.can_send_conversation_message("c", f"r{number}")
            assert found.status == "send"
            await manager.mark_sent_conversation_register("c", f"r{number}", "", f"s{number}", "x")
            await manager.delete_conversation_message(SyncMessageOptions(async_response_id="x"))
        name = it.runtime.keyspace.name
        gone = [name(keys.PENDING_MESSAGES), name(keys.OPEN_REQUESTS)]
        gone += [
            name(keys.CONVERSATION_REQUESTS, 0, "c"),
            name(keys.CONVERSATION_RESPONSES, 0, "c"),
        ]
        assert await it.runtime.redis.call("EXISTS", *gone) == 0
        order = name(keys.CONVERSATION_ORDER, 0, "c")
        assert await it.runtime.redis.call("HKEYS", order) == [b"n"]
