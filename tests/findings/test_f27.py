"""F27: what the manager could not do, and what a sent reply was journalled as."""

from __future__ import annotations

from angarium.conversations import keys
from angarium.conversations.compat import SyncMessageOptions
from angarium.conversations.model import TaskItem
from tests.conversations.harness import DEADLINE_S, Client, harness, harnesses, instance
from tests.kit.eventually import eventually

# Two ages of 4,096 replies are remembered as seen; older ones are forgotten.
REPLIES = 4_096 * 3 + 10


async def test_the_dates_of_a_message_and_projections_that_exclude(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        await it.reply("A", "a1")
        read = it.manager.get_conversation_message
        found = await read(SyncMessageOptions("a1"))
        assert found["expiresAt"].timestamp() == found["expiresAtTS"]
        assert found["awaitedToDate"].timestamp() == found["awaitedToDateTS"]
        without = await read(SyncMessageOptions("a1"), {"status": 0, "origin": 0})
        assert without == {k: v for k, v in found.items() if k not in ("status", "origin")}


async def test_a_sent_reply_is_journalled_as_delivered_when_its_time_is_over(
    any_redis_url: str,
) -> None:
    async with harness(any_redis_url) as it:
        await it.request("A")
        sent = await it.reply("A", "a1")
        assert await it.store.report_sent(sent, "ack-1") == "sent"
        it.clock.jump(16 * 60_000)
        assert [each.status for each in await it.claim()] == ["delivered"]
        ends = [name for name, subject in await it.events() if subject == "a1"]
        assert ends == ["accepted", "sent", "delivered"]


async def test_a_manager_holds_what_it_marks_pending(any_redis_url: str) -> None:
    async with harnesses(any_redis_url, None, None) as (one, other):
        await one.request("A")
        accepted = await one.manager.mark_pending_conversation_register(
            "", "c", "A", TaskItem(), "", "a1"
        )
        assert accepted.held
        assert await other.manager.get_awaited_messages(10) == []
        found = await other.manager.can_send_conversation_message("c", "A")
        assert found.status == "gone"
        assert (await one.manager.can_send_conversation_message("c", "A")).status == "send"


async def test_a_request_with_many_replies_remembers_a_bounded_number(redis_url: str) -> None:
    async with harness(redis_url, journal={"enabled": False}) as it:
        await it.request("A")
        for number in range(REPLIES):
            reply = await it.reply("A", f"a{number}", held=False)
            await it.store.finish(reply, "deleted")
        name = it.runtime.keyspace.name(keys.CONVERSATION_REQUEST, 0, "A")
        assert await it.runtime.redis.call("HLEN", name) < 4_096 * 2 + 20


async def test_the_time_that_a_caller_allows_in_the_queue_is_used(redis_url: str) -> None:
    client = Client()
    async with instance(redis_url, client.app) as role:
        await role.request("c", "earlier", "web")  # blocks the reply behind it
        await role.request("c", "A", "web")
        await role.reply("c", "A", "a1", TaskItem(time_in_queue=50))
        await eventually(lambda: role.awaited >= 1, DEADLINE_S)
        assert client.sent == []
