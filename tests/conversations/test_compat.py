"""The sync manager of aura-bridge: each method under both of its names."""

from __future__ import annotations

import asyncio
import inspect

import msgspec
import pytest

from angarium.conversations import keys
from angarium.conversations.awaited_agent import first_turn_in_s
from angarium.conversations.compat import MessageSyncManager, SyncMessageOptions
from angarium.conversations.errors import AckUnknown, IdRefused, ReplyUnknown, RequestUnknown
from angarium.conversations.model import (
    CanSend,
    MinMessageInfo,
    TaskItem,
    read_message,
)
from angarium.runtime.errors import InputInvalid, SettingInvalid
from angarium.settings import load
from tests.conversations.harness import Harness, harness, info, task
from tests.kit.server import ServerProcess

SEED_NAMES = [
    "createConversationRegister",
    "getInitDefaultValues",
    "markPendingConversationRegister",
    "markSentConversationRegister",
    "canSendConversationMessage",
    "getFirstConversationMessage",
    "deleteConversationMessage",
    "deleteConversationRegister",
    "getConversationMessage",
    "setAwaitedByRequestId",
    "setAwaitedByResponseId",
    "getAwaitedMessages",
    "setErrorById",
    "updateAwaitedExpires",
    "removeRequestMessage",
    "getAllSiblings",
    "removeAllSiblings",
    "generateUniqueMinInfoKey",
    "removeAllReferencesAtTime",
]


# The parameters of each method in order; ours may have more behind them.
TAKES = {
    "create_conversation_register": "origin conversation_id request_id corr request_timestamp",
    "get_init_default_values": "origin conversation_id request_id request_timestamp",
    "mark_pending_conversation_register": (
        "origin conversation_id request_id task_item corr response_id"
    ),
    "mark_sent_conversation_register": (
        "conversation_id request_id corr response_id async_response_id"
    ),
    "can_send_conversation_message": "conversation_id request_id corr",
    "get_first_conversation_message": "conversation_id",
    "delete_conversation_message": "options",
    "delete_conversation_register": "all_origin_except status request_info",
    "get_conversation_message": "options projection",
    "set_awaited_by_response_id": "options",
    "get_awaited_messages": "n_messages corr",
    "set_error_by_id": "options",
    "update_awaited_expires": "response_id corr",
    "remove_request_message": "options remove_owner corr",
    "get_all_siblings": "response_id_key corr",
    "remove_all_siblings": "group corr",
    "remove_all_references_at_time": "options delay_s corr",
}


@pytest.mark.parametrize("name", TAKES)
def test_every_method_takes_its_original_parameters_in_order(name: str) -> None:
    takes = list(inspect.signature(getattr(MessageSyncManager, name)).parameters)[1:]
    wanted = TAKES[name].split()
    assert takes[: len(wanted)] == wanted


def by(response_id: str) -> SyncMessageOptions:
    return SyncMessageOptions(response_id=response_id)


async def two_replies(it: Harness) -> tuple[MinMessageInfo, MinMessageInfo]:
    await it.request("A")
    return await it.reply("A", "a1"), await it.reply("A", "a2")


@pytest.mark.parametrize("name", SEED_NAMES)
def test_every_method_has_its_original_name_too(name: str) -> None:
    ours = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    assert getattr(MessageSyncManager, name) is getattr(MessageSyncManager, ours)


async def test_a_reply_goes_through_its_states(any_redis_url: str) -> None:
    async with harness(any_redis_url) as it:
        manager = it.manager
        status, request = await manager.create_conversation_register("web", "c", "A", "x", 7)
        assert (status, request.status, request.request_timestamp) == ("created", "WAITING", 7)
        accepted = await manager.mark_pending_conversation_register(
            "web", "c", "A", task("hi"), "x", "a1"
        )
        assert not accepted.duplicate
        verdict = await manager.can_send_conversation_message("c", "A")
        assert (verdict.status, verdict.first_response_id) == ("send", "a1")
        first = await manager.get_first_conversation_message("c")
        assert first is not None
        assert first.response_id == "a1"
        sent = await manager.mark_sent_conversation_register("c", "A", "x", "a1", "ack")
        assert sent == "sent"
        found = await manager.get_conversation_message(SyncMessageOptions(async_response_id="ack"))
        assert (found["status"], found["asyncResponseId"]) == ("SENT", "ack")
        only = await manager.get_conversation_message(by("a1"), {"status": 1, "origin": 0})
        assert only == {"status": "SENT"}
        options = SyncMessageOptions(async_response_id="ack")
        assert await manager.delete_conversation_message(options) == "delivered"
        with pytest.raises(AckUnknown):
            await manager.delete_conversation_message(options)
        with pytest.raises(ReplyUnknown):
            await manager.get_conversation_message(by("a1"))
        assert (await manager.can_send_conversation_message("c", "A")).status == "gone"
        assert await manager.get_first_conversation_message("c") is None


async def test_the_keys_and_their_expiry_are_those_of_aura_bridge(
    redis_server: ServerProcess,
) -> None:
    async with harness(redis_server.url) as it:
        witness = redis_server.client(decode_responses=True)
        head = f"{it.runtime.settings.prefix}bridge:queue"
        await it.request("rq-1", "conv-01")
        assert witness.lrange(f"{head}:conv-01:req", 0, -1) == [f"{head}:req:rq-1"]
        request = witness.hgetall(f"{head}:req:rq-1")
        assert request["conversationId"] == "conv-01"
        assert (request["status"], request["responseIdCounter"]) == ("WAITING", "0")
        assert 0 < witness.pttl(f"{head}:req:rq-1") <= 10_000
        assert 0 < witness.pttl(f"{head}:conv-01:req") <= 10_000
        reply = await it.reply("rq-1", "rs-1", "conv-01")
        member = '{"rqId":"rq-1","rsId":"rs-1","cnId":"conv-01"}'
        assert reply.key().decode() == member
        assert witness.zrange(f"{head}:conv-01", 0, -1) == [member]
        assert witness.zrange(f"{head}:pendingMessages", 0, -1) == [member]
        stored = witness.hgetall(f"{head}:res:rs-1")
        fields = {
            "conversationId", "origin", "requestId", "responseId", "requestTimestamp",
            "responseTimestamp", "status", "expiresAtTS", "awaitedToDateTS", "awaitedRetries",
            "taskItem",
        }  # fmt: skip
        assert fields <= stored.keys()
        assert 890_000 < witness.pttl(f"{head}:res:rs-1") <= 900_000
        assert 890_000 < witness.pttl(f"{head}:conv-01") <= 900_000
        assert witness.pttl(f"{head}:pendingMessages") == -1
        await it.store.report_sent(reply, "ack-1")
        assert witness.get(f"{head}:asyncRequest:ack-1") == member
        assert 0 < witness.pttl(f"{head}:asyncRequest:ack-1") <= 5_000


async def test_groups_are_awaited_and_claimed(any_redis_url: str) -> None:
    async with harness(any_redis_url) as it:
        first, second = await two_replies(it)
        assert await it.manager.set_awaited_by_request_id("c", "A") == 2
        taken = await it.manager.get_awaited_messages(15)
        assert {each.info for each in taken} == {first, second}
        assert await it.manager.get_awaited_messages(15) == []
        assert await it.manager.set_awaited_by_response_id(by("a1")) == "awaited"
        assert await it.manager.update_awaited_expires("a1") == "postponed"
        it.clock.jump(30_000)
        assert len(await it.manager.get_awaited_messages(1)) == 1


async def test_an_error_cancels_a_reply_and_its_siblings(any_redis_url: str) -> None:
    async with harness(any_redis_url) as it:
        await two_replies(it)
        assert await it.manager.set_error_by_id(by("a1")) == 2
        with pytest.raises(RequestUnknown):
            await it.reply("A", "a3")


async def test_siblings_can_be_removed_without_the_reply_itself(redis_url: str) -> None:
    async with harness(redis_url) as it:
        first, second = await two_replies(it)
        name = it.runtime.keyspace.name(keys.CONVERSATION_RESPONSE, 0, "a1")
        group = await it.manager.get_all_siblings(name)
        assert (group.info, list(group.siblings)) == (first, [first, second])
        assert await it.manager.remove_request_message(by("a1"), remove_owner=False) == 1
        assert await it.verdict(first) == "send"
        assert await it.manager.remove_request_message(by("a1"), remove_owner=True) == 1
        assert await it.verdict(first) == "gone"


async def test_a_register_is_deleted_whole_or_in_part(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await two_replies(it)
        manager = it.manager
        await manager.mark_pending_conversation_register("sms", "c", "A", task(), "", "a3")
        assert await manager.delete_conversation_register("whatsapp", None, info("A")) == 1
        assert await manager.delete_conversation_register(None, "AWAITED", info("A")) == 0
        assert await manager.delete_conversation_register(None, None, info("A")) == 2


async def test_a_reply_has_the_origin_it_names_and_else_that_of_its_request(
    any_redis_url: str,
) -> None:
    async with harness(any_redis_url) as it:
        await it.request("A")
        for origin, name in (("sms", "a1"), ("", "a2")):
            await it.manager.mark_pending_conversation_register(
                origin, "c", "A", task(), "corr", name
            )
        found = [await it.manager.get_conversation_message(by(name)) for name in ("a1", "a2")]
        assert [each["origin"] for each in found] == ["sms", "whatsapp"]
        with pytest.raises(IdRefused):
            await it.manager.mark_pending_conversation_register(
                "x" * 513, "c", "A", task(), "", "a3"
            )


async def test_siblings_are_listed_by_the_redis_key_of_a_reply(any_redis_url: str) -> None:
    async with harness(any_redis_url) as it:
        first, second = await two_replies(it)
        partition = it.store.partition_of("c")
        name = it.runtime.keyspace.name(keys.CONVERSATION_RESPONSE, partition, "a2")
        group = await it.manager.get_all_siblings(name)
        assert (group.info, list(group.siblings)) == (second, [first, second])
        with pytest.raises(ReplyUnknown):
            await it.manager.get_all_siblings(f"{name}x")
        request = it.runtime.keyspace.name(keys.CONVERSATION_REQUEST, partition, "A")
        for wrong in (request, "a2", ""):
            with pytest.raises(IdRefused):
                await it.manager.get_all_siblings(wrong)


def test_can_send_is_encoded_with_the_names_of_aura_bridge() -> None:
    written = msgspec.to_builtins(CanSend("wait_response", "a1"))
    assert (written["canSendStatus"], written["firstResponseId"]) == ("wait_response", "a1")


async def test_a_group_larger_than_one_call_is_cancelled_completely(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        await it.request("B")
        for number in range(1_203):
            await it.reply("A", f"a{number}")
        behind = await it.reply("B", "b")
        assert await it.manager.cancel_group(info("A", "a0"), "no") == 1_203
        assert await it.verdict(behind) == "send"


async def test_a_reply_can_be_ended_after_a_delay(redis_url: str) -> None:
    async with harness(redis_url) as it:
        _first, second = await two_replies(it)
        assert await it.manager.remove_all_references_at_time(by("a1"), 3) == "retiring"
        assert await it.verdict(second) == "wait_response"
        it.clock.jump(3_000)
        assert await it.verdict(second) == "send"


async def test_a_task_that_json_cannot_hold_is_refused(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        with pytest.raises(InputInvalid):
            await it.manager.mark_pending_conversation_register(
                "", "c", "A", task(object()), "", "a1"
            )


async def test_late_callbacks_reuse_the_request(any_redis_url: str) -> None:
    """11 s after the first reply: the request is still there, and the order as well."""
    async with harness(any_redis_url) as it:
        await it.request("A")
        await it.request("B")
        await it.reply("A", "a1")
        it.clock.jump(9_000)
        other = await it.reply("B", "b1")
        it.clock.jump(2_000)
        late = await it.reply("A", "a2")
        found = await it.store.snapshot("c", 10)
        assert [each.response_id for each in found.replies] == ["a1", "a2", "b1"]
        await it.store.finish(info("A", "a1"), "unasked")
        assert await it.verdict(other) == "wait_response"
        assert await it.verdict(late) == "send"


async def test_ten_thousand_replies_of_one_moment_have_ten_thousand_places(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        for start in range(0, 10_000, 500):
            await asyncio.gather(*(it.reply("A", f"a{start + n}") for n in range(500)))
        found = await it.store.snapshot("c", 10_000)
        assert [each.response_id for each in found.replies] == [f"a{n}" for n in range(10_000)]


def test_only_redis_is_accepted_as_the_database(
    no_settings: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AURA_QUEUE_MANAGER_DATABASE", "MONGODB")
    with pytest.raises(SettingInvalid, match="MONGODB is not supported"):
        load()
    monkeypatch.setenv("AURA_QUEUE_MANAGER_DATABASE", "redis")
    monkeypatch.setenv("AURA_QUEUE_MANAGER_MESSAGE_TTL", "7000")
    assert load().conversations.message_ttl == 7_000


def test_both_names_of_a_field_are_read() -> None:
    fields = [b"conversationId", b"c", b"origin", b"web", b"requestId", b"A", b"requestIdCounter",
              b"3", b"asyncRequestId", b"x"]  # fmt: skip
    message = read_message(fields)
    assert message is not None
    assert (message.response_id_counter, message.async_response_id) == (3, "x")


def test_the_first_turn_comes_at_a_random_second_of_the_minute() -> None:
    assert first_turn_in_s(60_000, lambda: 120.0, lambda _: 30) == 30
    assert first_turn_in_s(60_000, lambda: 150.5, lambda _: 10) == 39.5
    assert first_turn_in_s(1_000, lambda: 7.25, lambda _: 0) == 0.75


def test_every_variable_of_aura_bridge_has_its_default(no_settings: object) -> None:
    found = load().conversations
    assert found.awaited_message_ttl == 900_000
    assert found.awaited_messages_by_turn == 15
    assert found.awaited_messages_interval == 20_000
    assert found.awaited_retries_factor == 1
    assert found.awaited_time_when_retries_end == 5_000
    assert found.check_queue_interval == 1_000
    assert (found.concurrent, found.concurrent_factor) == (25, 2)
    assert found.interval == 200
    assert (found.max_pending_ttl, found.max_pending_ttl_margin) == (30_000, 5_000)
    assert (found.max_retries, found.message_ttl, found.sent_message_ttl) == (100, 10_000, 5_000)
    assert found.metrics_partial_interval == 30_000
    assert found.prefix == keys.CONVERSATIONS_PREFIX == "bridge:queue"
    assert TaskItem().time_in_queue is None
