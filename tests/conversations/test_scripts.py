"""Every script of the module called through the store: success and each refusal."""

from __future__ import annotations

import asyncio

import pytest

from angarium.conversations import keys
from angarium.conversations.errors import (
    IdRefused,
    ReplyTaken,
    RequestTaken,
    RequestUnknown,
    WrongConversation,
)
from angarium.conversations.model import CanSend
from angarium.conversations.script_values import CancelOptions, NewReply
from angarium.conversations.transitions import (
    DROP_DEAD,
    EXPIRE_REQUESTS,
    DropRepliesArgs,
    DropReplyItem,
    ExpireItem,
)
from angarium.runtime.dead_letters import DeadLetterUnknown
from angarium.runtime.errors import Overloaded
from tests.conversations.harness import harness, harnesses, info
from tests.kit.server import ServerProcess

FAX = "n:fax"


def new(request_id: str, response_id: str, conversation_id: str = "c") -> NewReply:
    return NewReply(conversation_id, request_id, response_id, 2, b"{}", hold="near")


# create_requests


async def test_a_request_takes_the_next_position_once(any_redis_url: str) -> None:
    async with harness(any_redis_url) as it:
        assert await it.request("A") == 1
        assert await it.request("B") == 2
        again = await it.store.create_request(info("A"), "whatsapp", 9, "")
        assert again == ("duplicate", 1)
        assert await it.count("requested") == 2


async def test_a_request_id_of_another_conversation_is_taken(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A", "c")
        with pytest.raises(RequestTaken):
            await it.request("A", "d")


async def test_a_conversation_full_of_requests_refuses_the_next(redis_url: str) -> None:
    async with harness(redis_url, limits={"conversation_requests_max": 2}) as it:
        await it.request("A")
        await it.request("B")
        with pytest.raises(Overloaded, match="conversation_requests_max"):
            await it.request("C")


async def test_a_request_id_used_again_after_it_expired_goes_to_the_end_of_the_list(
    redis_url: str,
) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        it.clock.jump(9_000)
        await it.request("B")
        it.clock.jump(2_000)
        assert await it.request("A") == 3
        late = await it.reply("A", "a1")
        assert await it.verdict(late) == "wait_request"
        assert (await it.store.check_reply(late)).request_key == it.runtime.keyspace.name(
            keys.CONVERSATION_REQUEST, 0, "B"
        )
        assert await it.count("request_expired") == 1


# accept_replies


async def test_replies_get_their_places_by_request_and_then_by_number(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        await it.request("B")
        for request_id, response_id in (("B", "b1"), ("A", "a1"), ("B", "b2"), ("A", "a2")):
            await it.reply(request_id, response_id)
        found = await it.store.snapshot("c", 10)
        assert [reply.response_id for reply in found.replies] == ["a1", "a2", "b1", "b2"]


async def test_a_reply_is_accepted_once_also_when_it_was_delivered_meanwhile(
    any_redis_url: str,
) -> None:
    async with harness(any_redis_url) as it:
        await it.request("A")
        reply = await it.reply("A", "a1")
        assert (await it.store.accept_reply(new("A", "a1"))).duplicate
        await it.store.finish(reply, "unasked")
        assert (await it.store.accept_reply(new("A", "a1"))).duplicate
        assert await it.count("accepted") == 1


async def test_a_reply_with_a_wrong_request_or_conversation_is_refused(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        await it.request("B")
        await it.request("D", "d")
        await it.reply("A", "a1")
        with pytest.raises(ReplyTaken):
            await it.store.accept_reply(new("B", "a1"))
        with pytest.raises(WrongConversation):
            await it.store.accept_reply(new("D", "d1", "c"))
        with pytest.raises(RequestUnknown):
            await it.store.accept_reply(new("nowhere", "n1"))
        assert await it.count("accepted") == 1


async def test_a_reply_to_an_expired_request_is_refused(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        it.clock.jump(10_000)
        with pytest.raises(RequestUnknown):
            await it.store.accept_reply(new("A", "a1"))


async def test_a_conversation_full_of_replies_refuses_the_next(redis_url: str) -> None:
    async with harness(redis_url, limits={"conversation_replies_max": 2}) as it:
        await it.request("A")
        await it.reply("A", "a1")
        await it.reply("A", "a2")
        with pytest.raises(Overloaded, match="conversation_replies_max"):
            await it.store.accept_reply(new("A", "a3"))


# check_replies


async def test_a_reply_waits_for_an_earlier_request_until_it_is_answered_or_expires(
    any_redis_url: str,
) -> None:
    async with harness(any_redis_url) as it:
        await it.request("A")
        await it.request("B")
        reply = await it.reply("B", "b1")
        verdict = await it.store.check_reply(reply)
        assert (verdict.status, verdict.left_ms) == ("wait_request", 10_000)
        it.clock.jump(9_999)
        assert await it.verdict(reply) == "wait_request"
        it.clock.jump(1)
        assert await it.verdict(reply) == "send"


async def test_a_reply_waits_for_the_one_before_it(any_redis_url: str) -> None:
    async with harness(any_redis_url) as it:
        await it.request("A")
        first, second = await it.reply("A", "a1"), await it.reply("A", "a2")
        assert await it.verdict(first) == "send"
        assert await it.store.check_reply(second) == CanSend(
            "wait_response", "a1", None, 900_000, it.store.holder
        )
        await it.store.report_sent(first, "x")
        assert (await it.store.check_reply(second)).left_ms == 5_000
        assert await it.verdict(first) == "gone"


async def test_the_check_removes_an_expired_reply_ahead(any_redis_url: str) -> None:
    async with harness(any_redis_url) as it:
        await it.request("A")
        sent = await it.reply("A", "a1")
        await it.store.report_sent(sent, "x")
        it.clock.jump(1)
        second = await it.reply("A", "a2")
        it.clock.jump(4_999)
        assert await it.verdict(second) == "send"
        assert ("delivered", "a1") in await it.events()


async def test_an_expired_reply_is_gone_and_has_one_event(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        reply = await it.reply("A", "a1")
        it.clock.jump(900_000)
        assert await it.verdict(reply) == "gone"
        assert await it.verdict(reply) == "gone"
        assert await it.count("expired") == 1


async def test_a_reply_that_another_process_holds_is_gone_for_this_one(redis_url: str) -> None:
    async with (
        harness(redis_url) as it,
        harness(redis_url, prefix=it.runtime.settings.prefix) as other,
    ):
        await it.request("A")
        reply = await it.reply("A", "a1")
        assert (await other.store.check_reply(reply, only_mine=True)).status == "gone"
        assert (await it.store.check_reply(reply, only_mine=True)).status == "send"


# report_sent, finish_replies, read_acks


async def test_a_sent_reply_is_found_by_the_id_of_its_ack(any_redis_url: str) -> None:
    async with harness(any_redis_url) as it:
        await it.request("A")
        reply = await it.reply("A", "a1")
        assert await it.store.report_sent(reply, "ack1") == "sent"
        assert await it.store.report_sent(reply, "ack1") == "repeated"
        assert await it.store.find_ack("ack1", None) == reply
        assert await it.store.find_ack("ack1", "c") == reply
        assert await it.store.find_ack("ack2", None) is None
        assert await it.store.finish(reply, "acknowledged", "ack1") == ("delivered", None)
        assert await it.store.finish(reply, "acknowledged", "ack1") == ("gone", None)
        assert await it.store.report_sent(reply, "ack1") == "gone"
        assert await it.store.find_ack("ack1", None) is None


async def test_the_id_of_an_ack_stays_with_the_first_that_waits_for_it(redis_url: str) -> None:
    async with harness(redis_url) as it:
        for name in "xyz":
            await it.request(name, name)
        first, second, third = [await it.reply(name, name, name) for name in "xyz"]
        assert await it.store.report_sent(first, "same") == "sent"
        assert await it.store.report_sent(second, "same") == "ack_taken"
        assert await it.store.find_ack("same", None) == first
        assert await it.store.find_ack("same", "y") is None
        stored = await it.store.read_reply("y", "y")
        assert stored is not None
        assert (stored.status, stored.async_response_id) == ("SENT", None)
        # The first ends otherwise, and leaves the id behind: nobody waits for it any more.
        assert (await it.store.finish(first, "deleted"))[0] == "delivered"
        assert await it.store.report_sent(third, "same") == "sent"
        assert await it.store.find_ack("same", None) == third
        it.clock.jump(5_000)
        assert await it.verdict(second) == "gone"
        assert await it.count("sent") == 3


async def test_a_reply_that_is_sent_again_keeps_the_id_of_its_ack(redis_url: str) -> None:
    """A process died after it reported; nothing of that is another reply's."""
    async with harness(redis_url) as it:
        await it.request("A")
        reply = await it.reply("A", "a1")
        name = it.runtime.keyspace.name(keys.ASYNC_REQUEST, 0, "same")
        await it.runtime.redis.call("SET", name, reply.key())
        assert await it.store.report_sent(reply, "same") == "sent"
        assert await it.store.find_ack("same", None) == reply


async def test_a_reply_that_was_never_sent_is_cancelled_and_not_delivered(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        reply = await it.reply("A", "a1")
        status, _ = await it.store.finish(reply, "deleted")
        assert status == "cancelled"
        assert await it.count("delivered") == 0


async def test_a_finished_conversation_leaves_only_the_request_and_the_order_key(
    redis_server: ServerProcess,
) -> None:
    async with harness(redis_server.url) as it:
        await it.request("A")
        reply = await it.reply("A", "a1")
        await it.store.report_sent(reply, "x")
        await it.store.finish(reply, "acknowledged", "x")
        prefix = it.runtime.settings.prefix
        left = {name.decode() for name in redis_server.client().keys(f"{prefix}bridge*")}
        assert left == {f"{prefix}bridge:queue:{ending}" for ending in ("req:A", "c:order")}


# claim_awaited, pop_new, take_replies


async def test_a_new_reply_is_offered_once(any_redis_url: str) -> None:
    async with harness(any_redis_url) as it:
        await it.request("A")
        reply = await it.reply("A", "a1", held=False)
        partition = it.store.partition_of("c")
        claim, due, _ = await it.store.claim_awaited(partition, 10)
        assert due == [reply]
        assert (await it.store.claim_awaited(partition, 10))[1] == []
        (outcome,) = await it.store.take([reply], claim)
        assert outcome.taken is not None
        assert (outcome.status, outcome.taken.reply.origin) == ("taken", "whatsapp")
        it.clock.jump(1)
        assert await it.store.await_replies([reply], 0, 0, "") == ["awaited"]
        assert [each.status for each in await it.store.take([reply], claim)] == ["lost"]


async def test_a_claim_goes_to_one_process_and_the_reply_is_due_again_when_it_expires(
    any_redis_url: str,
) -> None:
    async with harness(any_redis_url) as it:
        await it.request("A")
        reply = await it.reply("A", "a1")
        partition = it.store.partition_of("c")
        assert (await it.store.claim_awaited(partition, 10))[1] == []
        it.clock.jump(30_000)
        first, claimed, _ = await it.store.claim_awaited(partition, 10)
        assert claimed == [reply]
        assert (await it.store.claim_awaited(partition, 10))[1] == []
        it.clock.jump(30_000)
        second, claimed, _ = await it.store.claim_awaited(partition, 10)
        assert claimed == [reply]
        assert [each.status for each in await it.store.take([reply], first)] == ["lost"]
        (outcome,) = await it.store.take([reply], second)
        assert outcome.taken is not None
        assert outcome.taken.reply.awaited_retries == 1


async def test_taking_ends_expired_replies_and_leaves_sent_ones(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        first, second = await it.reply("A", "a1"), await it.reply("A", "a2")
        assert [each.status for each in await it.store.take([info("A", "never")], "1")] == ["gone"]
        it.clock.jump(30_000)
        claim, _, _ = await it.store.claim_awaited(0, 10)
        await it.store.report_sent(first, "x")
        it.clock.jump(1_000)
        outcomes = await it.store.take([first, second], claim)
        assert [each.status for each in outcomes] == ["lost", "taken"]
        it.clock.jump(4_000)
        claim, due, _ = await it.store.claim_awaited(0, 10)
        assert due == [first]
        (outcome,) = await it.store.take(due, claim)
        assert (outcome.status, outcome.next) == ("delivered", second)
        it.clock.jump(900_000)
        claim, due, _ = await it.store.claim_awaited(0, 10)
        assert [each.status for each in await it.store.take(due, claim)] == ["expired"]
        assert await it.store.in_flight(0) == (0, 0)


async def test_a_reply_far_behind_is_not_taken_until_it_is_nearly_its_turn(
    redis_url: str,
) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        replies = [await it.reply("A", f"a{n}", held=False) for n in range(70)]
        assert [each.status for each in await it.claim()] == ["taken"] * 64
        for reply in replies[:63]:
            await it.store.finish(reply, "unasked")
            assert (await it.store.claim_awaited(0, 10))[1] == []
        await it.store.finish(replies[63], "unasked")
        assert (await it.store.claim_awaited(0, 10))[1] == replies[64:]


# await_replies, postpone_replies, retire_replies


async def test_an_awaited_reply_is_due_after_its_back_off(any_redis_url: str) -> None:
    async with harness(any_redis_url) as it:
        await it.request("A")
        reply = await it.reply("A", "a1")
        partition = it.store.partition_of("c")
        assert await it.store.await_replies([reply], 5_000, 0, "why") == ["awaited"]
        assert await it.store.await_replies([reply], 9_000, 0, "why") == ["awaited"]
        assert await it.count("awaited") == 1
        it.clock.jump(4_999)
        assert (await it.store.claim_awaited(partition, 1))[1] == []
        it.clock.jump(1)
        claim, due, _ = await it.store.claim_awaited(partition, 1)
        await it.store.take(due, claim)
        # One retry so far: the back-off counts once.
        await it.store.await_replies([reply], 0, 30_000, "why")
        it.clock.jump(29_999)
        assert (await it.store.claim_awaited(partition, 1))[1] == []
        it.clock.jump(1)
        assert (await it.store.claim_awaited(partition, 1))[1] == [reply]


async def test_a_reply_that_is_sent_or_held_by_another_process_is_not_set_awaited(
    redis_url: str,
) -> None:
    async with (
        harness(redis_url) as it,
        harness(redis_url, prefix=it.runtime.settings.prefix) as other,
    ):
        await it.request("A")
        first, second = await it.reply("A", "a1"), await it.reply("A", "a2")
        assert await other.store.await_replies([first], 0, 0, "") == ["held"]
        await it.store.report_sent(first, None)
        unknown = info("A", "never")
        assert await it.store.await_replies([first, unknown], 0, 0, "") == ["sent", "gone"]
        other.clock.jump(30_000)
        assert await other.store.await_replies([second], 0, 0, "") == ["awaited"]


async def test_a_reply_is_postponed_and_retired(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        reply = await it.reply("A", "a1", held=False)
        assert await it.store.postpone(reply, 50_000, 0) == "postponed"
        it.clock.jump(49_999)
        assert (await it.store.claim_awaited(0, 1))[1] == []
        assert await it.store.retire(reply, 1_000) == "retiring"
        it.clock.jump(1_000)
        assert await it.verdict(reply) == "gone"
        assert await it.store.retire(reply, 1_000) == "gone"
        assert await it.store.postpone(reply, 1_000, 0) == "gone"
        sent = await it.reply("A", "a2")
        await it.store.report_sent(sent, None)
        assert await it.store.postpone(sent, 1_000, 0) == "sent"


async def test_only_its_holder_changes_the_end_of_a_hold(any_redis_url: str) -> None:
    """Postponing a held reply made it due at once, and a second process sent it too."""
    async with harnesses(any_redis_url, None, None) as (it, other):
        await it.request("A")
        reply = await it.reply("A", "a1")
        it.clock.jump(20_000)
        assert await other.store.postpone(reply, 0, 30_000) == "held"
        assert await other.claim() == []
        assert (await other.store.check_reply(reply, only_mine=True)).status == "gone"
        assert await it.store.postpone(reply, 0, 30_000) == "renewed"
        it.clock.jump(29_999)
        assert await other.claim() == []
        assert await it.verdict(reply) == "send"
        it.clock.jump(1)
        assert [each.status for each in await other.claim()] == ["taken"]
        assert await it.store.renew([reply]) == ["held"]
        assert await other.store.renew([reply]) == ["renewed"]
        assert await other.store.await_replies([reply], 0, 0, "") == ["awaited"]
        assert await it.store.renew([reply]) == ["gone"]


async def test_a_reply_that_another_holds_is_retired_when_its_hold_ends(redis_url: str) -> None:
    async with harnesses(redis_url, None, None) as (it, other):
        await it.request("A")
        reply = await it.reply("A", "a1")
        it.clock.jump(20_000)
        assert await other.store.retire(reply, 0) == "retiring"
        it.clock.jump(9_999)
        assert await other.claim() == []
        assert await it.verdict(reply) == "send"
        it.clock.jump(1)
        assert [each.status for each in await other.claim()] == ["expired"]


async def test_permission_to_send_lasts_at_least_half_of_a_hold(any_redis_url: str) -> None:
    async with harnesses(any_redis_url, None, None) as (it, other):
        await it.request("A")
        reply = await it.reply("A", "a1")
        it.clock.jump(29_999)
        found = await it.store.check_reply(reply, only_mine=True)
        assert (found.status, found.hold_ms) == ("send", 30_000)
        it.clock.jump(29_999)
        assert await other.claim() == []
        # Nobody took it when the hold ended: it is still this process's.
        it.clock.jump(1)
        assert (await it.store.check_reply(reply, only_mine=True)).status == "send"
        assert await other.claim() == []


async def test_f27_a_reply_that_is_being_sent_does_not_expire(any_redis_url: str) -> None:
    async with harnesses(any_redis_url, None, None) as (it, other):
        await it.request("A")
        reply = await it.reply("A", "a1")
        it.clock.jump(29_000)
        for _ in range(29):
            assert await it.store.renew([reply]) == ["renewed"]
            it.clock.jump(29_990)
        assert (await it.store.check_reply(reply, only_mine=True)).status == "send"
        it.clock.jump(29_000)  # its time has ended meanwhile
        assert await other.claim() == []
        assert await it.store.report_sent(reply, None) == "sent"
        it.clock.jump(5_000)
        assert [each.status for each in await other.claim()] == ["delivered"]
        assert await it.count("expired") == 0


async def test_f27_a_sent_reply_whose_list_has_expired_was_delivered(redis_url: str) -> None:
    """No process ran for a quarter of an hour: only the entry in pendingMessages is left."""
    async with harness(redis_url) as it:
        await it.request("A")
        sent, waiting = await it.reply("A", "a1"), await it.reply("A", "a2")
        await it.store.report_sent(sent, "ack")
        name = it.runtime.keyspace.name
        await it.runtime.redis.call(
            "DEL", name(keys.CONVERSATION_RESPONSES, 0, "c"),
            name(keys.CONVERSATION_RESPONSE, 0, "a1"), name(keys.CONVERSATION_RESPONSE, 0, "a2"),
        )  # fmt: skip
        it.clock.jump(900_000)
        assert {each.status for each in await it.claim()} == {"delivered", "expired"}
        events = await it.events()
        assert ("delivered", sent.response_id) in events
        assert ("expired", waiting.response_id) in events


async def test_f27_ids_of_replies_are_forgotten_when_a_request_has_had_many(
    redis_url: str,
) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        name = it.runtime.keyspace.name(keys.CONVERSATION_REQUEST, 0, "A")
        for start in range(0, 4 * 4096, 512):
            await asyncio.gather(
                *(it.store.accept_reply(new("A", f"a{start + n}")) for n in range(512))
            )
            await it.manager.delete_conversation_register("nobody", None, info("A"))
        assert await it.runtime.redis.call("HLEN", name) < 2 * 4096 + 12
        assert (await it.store.accept_reply(new("A", f"a{4 * 4096 - 4096}"))).duplicate


async def test_only_the_first_reply_of_a_conversation_counts_a_retry(redis_url: str) -> None:
    """F25: the replies behind a failed one were not tried."""
    async with harness(redis_url) as it:
        await it.request("A")
        replies = [await it.reply("A", f"a{n}") for n in range(3)]
        for _ in range(3):
            assert await it.store.await_replies(replies, 0, 0, "503") == ["awaited"] * 3
            taken = [each.taken for each in await it.claim()]
        retries = {each.info.response_id: each.reply.awaited_retries for each in taken if each}
        assert retries == {"a0": 3, "a1": 0, "a2": 0}
        it.clock.jump(30_000)  # the holder died
        taken = [each.taken for each in await it.claim()]
        retries = {each.info.response_id: each.reply.awaited_retries for each in taken if each}
        assert retries == {"a0": 4, "a1": 0, "a2": 0}


async def test_a_program_may_hold_replies_far_behind_and_a_process_waits_with_them(
    redis_url: str,
) -> None:
    async with harnesses(redis_url, None, None) as (it, other):
        await it.request("A")
        for number in range(65):
            reply = NewReply("c", "A", f"a{number}", 2, b"{}", hold="always")
            assert (await it.store.accept_reply(reply)).held
        other.clock.jump(30_000)
        statuses = [each.status for each in await other.claim()]
        assert (statuses.count("taken"), statuses.count("awaited")) == (64, 1)


# cancel_replies, list_siblings


async def test_a_group_is_cancelled_completely_and_the_next_reply_is_unblocked(
    any_redis_url: str,
) -> None:
    async with harness(any_redis_url) as it:
        await it.request("A")
        await it.request("B")
        await it.reply("A", "a1")
        await it.reply("A", "a2")
        other = await it.reply("B", "b1")
        group = await it.store.siblings(info("A"), last_first=True)
        assert [each.response_id for each in group] == ["a2", "a1"]
        done = await it.store.cancel(info("A"), group, CancelOptions(why="no"), whole_group=True)
        assert done == (2, other)
        assert await it.verdict(other) == "send"
        with pytest.raises(RequestUnknown):
            await it.store.accept_reply(new("A", "a3"))
        assert await it.count("cancelled") == 2


async def test_a_reply_that_failed_for_good_is_kept_retried_and_dropped(
    any_redis_url: str,
) -> None:
    async with harness(any_redis_url, limits={"conversation_dead_replies_max": 3}) as it:
        await it.request("A")
        await it.reply("A", "a1", required_sender=FAX)
        reply = await it.reply("A", "a2")
        assert await it.manager.cancel_group(reply, "403", dead=True) == 2
        dead = it.manager.dead
        page = await dead.page(1)
        assert page.next is not None
        others = await dead.page(5, page.next)
        found = [*page.letters, *others.letters]
        assert {each.id for each in found} == {"a1", "a2"}
        assert {each.reason for each in found} == {"403"}
        shown = await dead.find("a1")
        assert (shown.request_id, shown.origin, shown.task) == ("A", "whatsapp", {})
        await dead.retry("a1")
        stored = await it.runtime.redis.call(
            "HGET", it.runtime.keyspace.name(
                keys.CONVERSATION_RESPONSE, it.store.partition_of("c"), "a1"), "sender",
            key=it.runtime.keyspace.name(keys.CONVERSATION_ORDER, it.store.partition_of("c"), "c"),
        )  # fmt: skip
        assert stored == FAX.encode()
        other = DropReplyItem("a2", reply.key(), (await dead.find("a2")).at_ms)
        partition, args = it.store.partition_of("c"), DropRepliesArgs(retried=False)
        for died_at_ms, status in ((other.died_at_ms - 1, "gone"), (other.died_at_ms, "dropped")):
            item = other._replace(died_at_ms=died_at_ms)
            assert await it.runtime.call(DROP_DEAD, partition, args, [item]) == [status]
        assert await it.runtime.call(DROP_DEAD, partition, args, [other]) == ["gone"]
        events = [each for each in await it.events() if each[0] in ("dead", "discarded")]
        assert sorted(events) == [("dead", "a1"), ("dead", "a2"), ("discarded", "a2")]
        for id in ("a1", "a2"):
            with pytest.raises(DeadLetterUnknown):
                await dead.find(id)
        assert await dead.count() == 0


@pytest.mark.limit("conversation_dead_replies_max")
async def test_dead_replies_are_limited_in_number(redis_url: str) -> None:
    async with harness(redis_url, limits={"conversation_dead_replies_max": 3}) as it:
        for number in range(5):
            await it.request(f"r{number}")
            reply = await it.reply(f"r{number}", f"a{number}")
            assert await it.manager.cancel_group(reply, "no", dead=True) == 1
            it.clock.jump(1)
        page = await it.manager.dead.page()
        assert [each.id for each in page.letters] == ["a2", "a3", "a4"]
        with pytest.raises(DeadLetterUnknown):
            await it.manager.dead.find("a1")


async def test_a_group_that_grew_since_it_was_listed_is_listed_again(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        await it.reply("A", "a1")
        group = await it.store.siblings(info("A"), last_first=True)
        await it.reply("A", "a2")
        assert await it.store.cancel(info("A"), group, CancelOptions(), whole_group=True) is None
        assert await it.count("cancelled") == 0
        assert await it.manager.cancel_group(group[0], "no") == 2


async def test_only_some_of_a_group_can_be_cancelled(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        await it.reply("A", "a1")
        await it.reply("A", "a2", held=False)
        only_waiting = CancelOptions(close=False, status="WAITING")
        group = await it.store.siblings(info("A"), last_first=True)
        done = await it.store.cancel(info("A"), group, only_waiting, whole_group=False)
        assert done == (1, None)
        others = CancelOptions(close=False, except_origin="whatsapp")
        assert await it.store.cancel(info("A"), group, others, whole_group=False) == (0, None)


async def test_a_request_without_replies_can_be_closed(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        await it.request("B")
        waiting = await it.reply("B", "b1")
        assert await it.verdict(waiting) == "wait_request"
        done = await it.store.cancel(info("A"), [], CancelOptions(), whole_group=True)
        assert done == (0, waiting)
        assert await it.verdict(waiting) == "send"
        assert await it.count("request_removed") == 1


# expire_requests, read_messages, describe_conversation


async def test_a_request_that_expires_without_a_reply_has_one_event(any_redis_url: str) -> None:
    async with harness(any_redis_url) as it:
        await it.request("A")
        await it.request("B")
        await it.reply("B", "b1")
        partition = it.store.partition_of("c")
        assert await it.store.expire_requests(partition, 10) == 0
        it.clock.jump(10_000)
        assert await it.store.expire_requests(partition, 10) == 1
        assert await it.store.expire_requests(partition, 10) == 0
        events = await it.events()
        assert ("request_expired", "A") in events
        assert ("answered", "B") in events


async def test_a_request_that_was_opened_again_or_ended_meanwhile_does_not_expire(
    redis_url: str,
) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        items = [ExpireItem("c", name, info(name).key()) for name in ("A", "B")]
        args = it.store._args
        found = await it.runtime.call(EXPIRE_REQUESTS, 0, args, items)
        assert found == ["open", "gone"]
        assert await it.count("request_expired") == 0


async def test_messages_are_read_as_they_are_stored(any_redis_url: str) -> None:
    async with harness(any_redis_url) as it:
        await it.request("A")
        request = await it.store.read_request("A", None)
        assert request is not None
        assert (request.status, request.response_id_counter) == ("WAITING", 0)
        await it.reply("A", "a1")
        request = await it.store.read_request("A", "c")
        assert request is not None
        assert (request.status, request.response_id_counter) == ("PENDING", 1)
        reply = await it.store.read_reply("a1", None)
        assert reply is not None
        assert (reply.status, reply.awaited_retries) == ("PENDING", 0)
        assert await it.store.read_reply("a2", None) is None


@pytest.mark.parametrize(
    "conversation_id",
    ["pendingMessages", "openRequests", "waitingSender", "waitingSender:n:x",
     "req:x", "res:x", "x:req", "x:order", "req",
     "asyncRequest:1", "", "x" * 513, "\ud800"],
)  # fmt: skip
async def test_an_id_that_spells_another_key_is_refused(
    redis_url: str, conversation_id: str
) -> None:
    async with harness(redis_url) as it:
        with pytest.raises(IdRefused):
            await it.request("A", conversation_id)


async def test_entries_of_other_programs_in_our_keys_are_skipped(redis_url: str) -> None:
    async with harness(redis_url) as it:
        name = it.runtime.keyspace.name(keys.PENDING_MESSAGES)
        await it.runtime.redis.call("ZADD", name, 1, "nonsense")
        assert (await it.store.claim_awaited(0, 10))[1] == []
        assert it.store.partition_of("a harmless id") == 0
