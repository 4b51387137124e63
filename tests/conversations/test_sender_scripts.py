"""Replies whose sender a process lacks: each script that handles them, called by the store."""

from __future__ import annotations

from typing import Any

import pytest

from angarium.conversations import keys
from angarium.conversations.compat import SyncMessageOptions
from angarium.conversations.model import (
    MessageOptions,
    MinMessageInfo,
    TaskItem,
    acceptable_senders,
    encode_task,
    required_sender_of,
)
from angarium.conversations.script_values import NewReply, TakeResult
from angarium.conversations.store import WAITING
from angarium.conversations.wait_reasons import SenderWait
from tests.conversations.harness import Harness, harnesses, info
from tests.kit.sample import sample_runtime

FAX = "n:fax"
FIRST_LOOK_MS = 30_000  # max_pending_ttl


async def status(process: Harness, which: MinMessageInfo) -> tuple[str, int | None]:
    message = await process.store.read_reply(which.response_id, which.conversation_id)
    assert message is not None
    return message.status, message.awaited_retries


async def offered(process: Harness) -> list[MinMessageInfo]:
    partitions = process.store.partitions
    return [each for p in partitions for each in await process.store.pop_waiting(p, 100)]


async def take_new(process: Harness) -> list[TakeResult]:
    found = []
    for partition in process.store.partitions:
        infos = await process.store.pop_new(partition, 100)
        found += await process.store.take(infos)
    return found


async def claim(process: Harness) -> list[TakeResult]:
    found = []
    for partition in process.store.partitions:
        claimed, infos = await process.store.claim_awaited(partition, 100)
        found += await process.store.take(infos, claimed)
    return found


def statuses(outcomes: list[TakeResult]) -> list[str]:
    return [each.status for each in outcomes]


async def needs(process: Harness) -> list[SenderWait]:
    return [
        each for p in process.store.partitions for each in (await process.store.sender_waits(p))[1]
    ]


async def waiting(process: Harness, *, required_sender: str = FAX) -> MinMessageInfo:
    """A reply that this process found and can't send."""
    await process.request("A")
    reply = await process.reply("A", "a1", held=False, required_sender=required_sender)
    assert statuses(await take_new(process)) == ["no_sender"]
    return reply


# accept_replies


@pytest.mark.parametrize(
    ("senders", "need", "held"),
    [
        (["fax", "http"], FAX, True),
        (["http"], FAX, False),
        (["default"], FAX, False),
        (["http"], "n:http", True),
        (["default"], "", True),
        (["whatsapp"], "", True),  # the origin of the request
        (["http", "pickup"], "", False),
        (None, FAX, True),
    ],
)
async def test_a_process_holds_only_replies_it_can_send(
    redis_url: str, senders: list[str] | None, need: str, held: bool
) -> None:
    async with harnesses(redis_url, senders) as (it,):
        await it.request("A")
        new = NewReply("c", "A", "a1", 2, b"{}", held=True, required_sender=need)
        assert (await it.store.accept_reply(new)).held is held
        assert (await status(it, info("A", "a1")))[0] == ("PENDING" if held else "WAITING")


# take_replies


async def test_a_reply_whose_sender_is_missing_keeps_its_state_place_and_retries(
    any_redis_url: str,
) -> None:
    async with harnesses(any_redis_url, ["http"], ["fax"]) as (foreign, own):
        reply = await waiting(foreign)
        assert await status(foreign, reply) == ("WAITING", 0)
        assert await foreign.count("taken") == await foreign.count("awaited") == 0
        assert await foreign.verdict(reply) == "send"
        (need,) = await needs(foreign)
        assert need == SenderWait(("fax",), 1, foreign.clock.now_ms())
        assert await offered(foreign) == []
        found = await offered(own)
        assert found == [reply]
        (outcome,) = await own.store.take(found, WAITING)
        assert outcome.taken is not None
        assert outcome.taken.reply.awaited_retries == 0
        assert await needs(own) == []


async def test_a_reply_that_names_no_sender_goes_to_that_of_its_origin_or_to_default(
    redis_url: str,
) -> None:
    for names in (["default"], ["whatsapp"]):
        async with harnesses(redis_url, ["http"], names) as (foreign, own):
            reply = await waiting(foreign, required_sender="")
            (need,) = await needs(foreign)
            assert need.senders == ("whatsapp", "default")
            assert await offered(own) == [reply]
            assert statuses(await own.store.take([reply], WAITING)) == ["taken"]


async def test_a_process_without_sender_names_gets_every_reply(any_redis_url: str) -> None:
    async with harnesses(any_redis_url, ["http"], None) as (foreign, manager):
        await waiting(foreign)
        await foreign.request("B", "d")
        await foreign.reply("B", "b1", "d", held=False)
        await take_new(foreign)
        taken = await manager.manager.get_awaited_messages(10)
        assert {each.info.response_id for each in taken} == {"a1", "b1"}


async def test_a_waiting_reply_is_taken_once(redis_url: str) -> None:
    async with harnesses(redis_url, ["http"], ["fax"], ["fax"]) as (foreign, first, second):
        reply = await waiting(foreign)
        assert statuses(await first.store.take([reply], WAITING)) == ["taken"]
        assert statuses(await second.store.take([reply], WAITING)) == ["lost"]
        assert await offered(second) == []


async def test_a_reply_that_was_popped_and_not_taken_is_due_again(redis_url: str) -> None:
    async with harnesses(redis_url, ["http"], ["fax"], ["fax"]) as (foreign, dead, own):
        await waiting(foreign)
        assert len(await offered(dead)) == 1
        assert await offered(own) == []
        own.clock.jump(FIRST_LOOK_MS)
        assert statuses(await claim(own)) == ["taken"]


async def test_a_reply_without_a_sender_is_checked_seldom_and_gets_no_retry(redis_url: str) -> None:
    async with harnesses(redis_url, ["http"], ["fax"]) as (foreign, own):
        reply = await waiting(foreign)
        looks = 0
        for _ in range(899):
            foreign.clock.jump(1_000)
            looks += len(await claim(foreign))
        assert looks == 5  # after 30, 60, 120, 240 and 480 s
        assert await status(foreign, reply) == ("WAITING", 0)
        (need,) = await needs(foreign)
        assert foreign.clock.now_ms() - need.since_ms == 899_000
        (outcome,) = await own.store.take(await offered(own), WAITING)
        assert outcome.taken is not None
        assert outcome.taken.reply.awaited_retries == 0


async def test_a_reply_of_a_dead_process_waits_for_its_sender(redis_url: str) -> None:
    async with harnesses(redis_url, ["fax"], ["http"], ["fax"]) as (dead, foreign, own):
        await dead.request("A")
        reply = await dead.reply("A", "a1", required_sender=FAX)
        foreign.clock.jump(FIRST_LOOK_MS)
        assert statuses(await claim(foreign)) == ["no_sender"]
        assert await status(foreign, reply) == ("AWAITED", 0)
        assert await foreign.count("awaited") == 1
        (outcome,) = await own.store.take(await offered(own), WAITING)
        assert outcome.taken is not None
        assert outcome.taken.reply.awaited_retries == 0
        # The process was only paused: it may not send any more.
        assert (await dead.store.check_reply(reply, only_mine=True)).status == "gone"


async def test_a_reply_without_a_sender_expires_and_the_next_can_be_sent(
    any_redis_url: str,
) -> None:
    async with harnesses(any_redis_url, ["http"]) as (it,):
        await waiting(it)
        it.clock.jump(800_000)
        await it.request("B")
        following = await it.reply("B", "b1", required_sender="n:http")
        assert await it.verdict(following) == "wait_response"
        it.clock.jump(100_000)
        assert "expired" in statuses(await claim(it))
        assert await it.verdict(following) == "send"
        assert await it.count("expired") == 1
        assert await needs(it) == []


async def test_a_reply_far_behind_does_not_wait_for_its_sender_yet(redis_url: str) -> None:
    async with harnesses(redis_url, ["http"]) as (it,):
        await it.request("A")
        for number in range(64):
            await it.reply("A", f"a{number}", required_sender="n:http")
        await it.reply("A", "last", held=False, required_sender=FAX)
        assert statuses(await take_new(it)) == ["awaited"]
        assert await needs(it) == []


async def test_the_required_sender_of_a_reply_that_0_1_0_accepted_is_read_from_its_task(
    redis_url: str,
) -> None:
    async with harnesses(redis_url, ["http"], ["fax"]) as (foreign, own):
        await foreign.request("A")
        options = {
            "a1": MessageOptions(1, sender="fax"),
            "a2": MessageOptions(1, callback_url="https://example.com"),
            "a3": MessageOptions(1),
        }
        for response_id, option in options.items():
            task = encode_task(TaskItem(option))
            await foreign.store.accept_reply(NewReply("c", "A", response_id, 2, task))
            name = foreign.runtime.keyspace.name(keys.CONVERSATION_RESPONSE, 0, response_id)
            await foreign.runtime.redis.call("HDEL", name, "sender", key=name)
        assert statuses(await take_new(foreign)) == ["no_sender", "taken", "no_sender"]
        assert {need.senders for need in await needs(own)} == {("fax",), ("whatsapp", "default")}


async def test_while_a_process_of_0_1_0_runs_a_reply_stays_due_for_it(redis_url: str) -> None:
    """0.1.0 finds replies only when they are due, and takes all of them."""
    async with harnesses(redis_url, ["http"], None) as (foreign, older):
        foreign.store.old_version_runs = True
        reply = await waiting(foreign)
        assert statuses(await claim(foreign)) == ["no_sender"]
        assert await claim(older) == []
        older.clock.jump(1_000)
        assert statuses(await claim(older)) == ["taken"]
        # It is still in the wait set, but no other process may take it.
        assert statuses(await foreign.store.take([reply], WAITING)) == ["lost"]


async def test_a_reply_waits_for_a_sender_with_an_odd_name(redis_url: str) -> None:
    odd = "fax 100%\n\t«é» %20@-*"
    async with harnesses(redis_url, ["http"], [odd]) as (foreign, own):
        await waiting(foreign, required_sender=f"n:{odd}")
        (need,) = await needs(foreign)
        assert need.senders == (odd,)
        shown = (await foreign.store.snapshot("c", 10)).replies[0]
        assert (shown.senders, shown.holder) == ((odd,), None)
        assert statuses(await own.store.take(await offered(own), WAITING)) == ["taken"]
        assert await needs(own) == []


# Other scripts


async def test_a_reply_behind_one_without_a_sender_waits_although_a_process_holds_it(
    redis_url: str,
) -> None:
    async with harnesses(redis_url, ["http"], ["fax"]) as (web, fax):
        await waiting(web)
        behind = await web.reply("A", "a2", required_sender="n:http")
        assert (await web.store.check_reply(behind)).first_response_id == "a1"
        (first,) = await offered(fax)
        await fax.store.take([first], WAITING)
        assert (await fax.store.check_reply(first, only_mine=True)).status == "send"
        await fax.store.finish(first, "unasked")
        assert await web.verdict(behind) == "send"


async def test_cancelling_the_group_ends_a_reply_without_a_sender(any_redis_url: str) -> None:
    async with harnesses(any_redis_url, ["http"], ["fax"]) as (foreign, own):
        reply = await waiting(foreign)
        assert await foreign.manager.cancel_group(reply, "fatal") == 1
        assert await needs(foreign) == []
        assert await offered(own) == []
        assert await foreign.count("cancelled") == 1


async def test_a_failed_group_sets_a_waiting_reply_awaited_and_it_still_waits_for_its_sender(
    redis_url: str,
) -> None:
    async with harnesses(redis_url, ["http"], ["fax"]) as (foreign, own):
        reply = await waiting(foreign)
        assert await foreign.manager.set_awaited_by_request_id("c", "A", why="timeout") == 1
        assert await status(foreign, reply) == ("AWAITED", 0)
        assert await foreign.count("awaited") == 1
        assert await foreign.manager.set_awaited_by_request_id("c", "A", why="timeout") == 1
        assert await foreign.count("awaited") == 1
        (outcome,) = await own.store.take(await offered(own), WAITING)
        assert outcome.taken is not None
        assert outcome.taken.reply.awaited_retries == 0


async def test_deleting_ends_a_reply_without_a_sender(redis_url: str) -> None:
    async with harnesses(redis_url, ["http"]) as (it,):
        await waiting(it)
        options = SyncMessageOptions(response_id="a1", conversation_id="c")
        assert await it.manager.delete_conversation_message(options) == "cancelled"
        assert await needs(it) == []


async def test_the_send_of_a_paused_process_is_recorded(redis_url: str) -> None:
    async with harnesses(redis_url, ["fax"], ["http"]) as (paused, foreign):
        await paused.request("A")
        reply = await paused.reply("A", "a1", required_sender=FAX)
        foreign.clock.jump(FIRST_LOOK_MS)
        await claim(foreign)
        assert await paused.store.report_sent(reply, "ack") == "sent"
        assert await needs(foreign) == []
        assert statuses(await foreign.store.take([reply], WAITING)) == ["lost"]


async def test_a_retired_reply_without_a_sender_ends(redis_url: str) -> None:
    async with harnesses(redis_url, ["http"]) as (it,):
        reply = await waiting(it)
        assert await it.store.retire(reply, 2_000) == "retiring"
        it.clock.jump(2_000)
        assert statuses(await claim(it)) == ["expired"]
        assert await needs(it) == []


async def test_postponing_a_reply_without_a_sender_changes_only_its_next_check(
    redis_url: str,
) -> None:
    async with harnesses(redis_url, ["http"], ["fax"]) as (foreign, own):
        reply = await waiting(foreign)
        assert await foreign.store.postpone(reply, 0, 0) == "postponed"
        assert statuses(await claim(foreign)) == ["no_sender"]
        assert len(await offered(own)) == 1


# list_sender_waits, pop_waiting


async def test_sender_waits_of_an_expired_conversation_are_removed_in_time(redis_url: str) -> None:
    """Redis expires the keys of a conversation; the wait set must not keep its replies."""
    async with harnesses(redis_url, ["http"]) as (it,):
        await waiting(it)
        names = [
            it.runtime.keyspace.name(key, 0, part)
            for key, part in (
                (keys.CONVERSATION_RESPONSES, "c"),
                (keys.CONVERSATION_ORDER, "c"),
                (keys.CONVERSATION_RESPONSE, "a1"),
            )
        ]
        await it.runtime.redis.call("DEL", *names, key=names[0])
        it.clock.jump(900_001)
        assert await needs(it) == []
        await it.request("B", "d")
        await it.reply("B", "b1", "d", held=False, required_sender="n:telex")
        await take_new(it)
        stem = it.runtime.keyspace.name(keys.WAITING_SENDER, 0, "n")
        found = await it.runtime.redis.call("ZRANGE", stem, 0, -1, key=stem)
        assert found == [b"n:telex"]


async def test_a_process_with_a_shorter_ttl_removes_no_reply_that_still_lives(
    redis_url: str,
) -> None:
    """Settings differ during a rolling deployment."""
    short: dict[str, Any] = {"conversations": {"awaited_message_ttl": 40_000}}
    async with harnesses(redis_url, ["http"]) as (it,):
        await waiting(it)
        prefix = it.runtime.settings.prefix
        async with sample_runtime(redis_url, clock=it.clock, prefix=prefix, **short) as runtime:
            other = Harness(runtime, it.clock, ["http"])
            for _ in range(3):
                it.clock.jump(60_000)
                await claim(other)
        fax = Harness(it.runtime, it.clock, ["fax"])
        assert statuses(await fax.store.take(await offered(fax), WAITING)) == ["taken"]


async def test_no_more_replies_are_popped_than_asked_for(redis_url: str) -> None:
    async with harnesses(redis_url, ["http"], ["default", "fax"]) as (foreign, own):
        await foreign.request("A")
        for number in range(6):
            need = ("n:fax", "", "n:default")[number % 3]
            await foreign.reply("A", f"a{number}", held=False, required_sender=need)
        await take_new(foreign)
        found = []
        while some := await own.store.pop_waiting(0, 4):
            assert len(some) <= 4
            found += some
        assert {each.response_id for each in found} == {f"a{number}" for number in range(6)}


async def test_replies_too_large_for_one_call_wait_for_the_next(redis_url: str) -> None:
    large = encode_task(TaskItem(MessageOptions("x" * 2**20)))
    async with harnesses(redis_url, ["http"], ["fax"]) as (foreign, own):
        await foreign.request("A")
        for number in range(10):
            await foreign.store.accept_reply(
                NewReply("c", "A", f"a{number}", 2, large, required_sender=FAX)
            )
        assert statuses(await take_new(foreign)) == ["no_sender"] * 10
        first = await own.store.take(await offered(own), WAITING)
        assert statuses(first) == ["taken"] * 8 + ["later"] * 2
        assert statuses(await own.store.take(await offered(own), WAITING)) == ["taken"] * 2
        assert await needs(own) == []


def test_a_required_sender_names_the_acceptable_senders() -> None:
    assert (
        required_sender_of(MessageOptions(sender="fax", callback_url="https://example.com"))
        == "n:fax"
    )
    assert required_sender_of(MessageOptions(callback_url="https://example.com")) == "n:http"
    assert required_sender_of(MessageOptions()) == ""
    assert acceptable_senders("n:a:b") == ("a:b",)
    assert acceptable_senders("o:web") == ("web", "default")
    assert acceptable_senders("o:default") == ("default",)


# The registry of senders


async def test_the_senders_of_a_process_count_for_as_long_as_it_reports(
    any_redis_url: str,
) -> None:
    async with harnesses(any_redis_url, None, None) as (first, second):
        await first.store.senders.register(["http", "fax"])
        await second.store.senders.register(["http"])
        assert await first.store.senders.running() == {"http": 2, "fax": 1}
        first.clock.jump(9_000)
        await second.store.senders.register(["http"])
        first.clock.jump(2_000)
        assert await second.store.senders.running() == {"http": 1}
        await second.store.senders.withdraw()
        assert await second.store.senders.running() == {}


# Waiting behind others (F25)


async def test_only_a_failed_try_makes_the_next_one_a_retry(redis_url: str) -> None:
    async with harnesses(redis_url, None) as (it,):
        await it.request("A")
        reply = await it.reply("A", "a1")
        for _ in range(3):
            await it.store.await_replies([reply], 0, 30_000, "retries ended", tried=False)
            assert statuses(await claim(it)) == ["taken"]
        assert await status(it, reply) == ("PENDING", 0)
        await it.store.await_replies([reply], 0, 30_000, "timeout")
        assert statuses(await claim(it)) == ["taken"]
        assert await status(it, reply) == ("PENDING", 1)
        await it.store.await_replies([reply], 0, 30_000, "given back", tried=False)
        it.clock.jump(30_000)
        assert statuses(await claim(it)) == ["taken"]
        assert await status(it, reply) == ("PENDING", 1)


async def test_a_wait_far_behind_is_no_retry(redis_url: str) -> None:
    async with harnesses(redis_url, None) as (it,):
        await it.request("A")
        ahead = [await it.reply("A", f"a{number}") for number in range(64)]
        last = await it.reply("A", "last", held=False)
        assert statuses(await take_new(it)) == ["awaited"]
        for each in ahead:
            await it.store.finish(each, "unasked")
        assert statuses(await claim(it)) == ["taken"]
        assert await status(it, last) == ("PENDING", 0)


async def test_taking_a_reply_of_a_dead_process_counts_as_a_retry(redis_url: str) -> None:
    """The dead process may have tried it."""
    async with harnesses(redis_url, None, None) as (dead, it):
        await dead.request("A")
        reply = await dead.reply("A", "a1")
        it.clock.jump(FIRST_LOOK_MS)
        assert statuses(await claim(it)) == ["taken"]
        assert await status(it, reply) == ("PENDING", 1)
