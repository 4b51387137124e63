"""Ids used again, replies about to expire, leftovers, large groups and odd text."""

from __future__ import annotations

import asyncio
import io
from contextlib import redirect_stdout
from urllib.parse import quote

import aiohttp
import pytest
from yarl import URL

from angarium.cli import conversation as command
from angarium.conversations import keys, service
from angarium.conversations.compat import SyncMessageOptions
from angarium.conversations.errors import AckUnknown, ReplyUnknown, RequestUnknown
from angarium.conversations.model import MinMessageInfo, OutgoingReply
from angarium.conversations.script_values import CancelOptions, NewReply
from angarium.conversations.views import view_conversation
from angarium.runtime.application import Application
from angarium.runtime.errors import InputInvalid, Overloaded
from tests.conversations.harness import DEADLINE_S, Client, Harness, harness, instance, task
from tests.conversations.receiver import receiver
from tests.conversations.test_bad_input import settled
from tests.conversations.test_http import ApiClient, opening, running_api
from tests.kit.eventually import eventually

ODD = ["a\nb", "[/red]", "\x1b[31m", "\x00", "Ü/ß", '"\\', "%2F", "😀"]


async def order_fields(it: Harness, conversation_id: str = "c") -> set[str]:
    partition = it.store.partition_of(conversation_id)
    name = it.runtime.keyspace.name(keys.CONVERSATION_ORDER, partition, conversation_id)
    found = await it.runtime.redis.call("HKEYS", name, key=name)
    return {field.decode() for field in found}


# Ids used again


async def test_the_end_of_a_reply_does_not_end_another_of_the_same_id(any_redis_url: str) -> None:
    """A response id numbered per request is used again when the first reply has expired."""
    async with harness(any_redis_url) as it:
        await it.request("A")
        first = await it.reply("A", "1")
        assert await it.store.report_sent(first, "ack") == "sent"
        it.clock.jump(5_000)
        await it.request("B")
        second = await it.reply("B", "1", held=False)
        partition = it.store.partition_of("c")
        claim, due, _ = await it.store.claim_awaited(partition, 10)
        assert set(due) == {first, second}
        assert (await it.store.take([first], claim))[0].status == "delivered"
        (found,) = await it.claim()  # the end of the first made it due
        assert found.status == "taken"
        assert await it.store.report_sent(second, None) == "sent"


async def test_two_conversations_may_use_the_same_response_id(any_redis_url: str) -> None:
    gate = asyncio.Event()
    sent: list[str] = []
    app = Application()

    @app.reply_sender()
    async def send(reply: OutgoingReply) -> None:
        sent.append(reply.conversation_id)
        await gate.wait()

    async with instance(any_redis_url, app) as bridge:
        of = {bridge.store.partition_of(f"c{n}"): f"c{n}" for n in range(32)}
        for name in of.values():
            await bridge.request(name, f"request-{name}", "whatsapp")
            await bridge.reply(name, f"request-{name}", "1", task())
        await eventually(lambda: sorted(sent) == sorted(of.values()), DEADLINE_S)
        gate.set()


async def test_an_id_is_looked_up_in_its_own_conversation_only(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        reply = await it.reply("A", "a1")
        await it.store.report_sent(reply, "ack")
        with pytest.raises(AckUnknown):
            await it.manager.find(SyncMessageOptions(async_response_id="ack", conversation_id="d"))
        with pytest.raises(ReplyUnknown):
            await it.manager.find(SyncMessageOptions(response_id="a1", conversation_id="d"))
        found = await it.manager.find(SyncMessageOptions(response_id="a1", conversation_id="c"))
        assert found == reply


# Leftovers


async def test_requests_without_a_reply_leave_nothing_behind(any_redis_url: str) -> None:
    async with harness(any_redis_url, limits={"conversation_requests_max": 3}) as it:
        partition = it.store.partition_of("c")
        for number in range(10):
            await it.request(f"r{number}")
            it.clock.jump(5_000)
            await it.store.expire_requests(partition, 10)
        found = await it.store.snapshot("c", 10)
        assert [each.request_id for each in found.requests] == ["r9"]
        assert len(await order_fields(it)) == 2
        assert await it.count("request_expired") == 9


async def test_a_request_opened_again_does_not_expire_with_its_predecessor(
    redis_url: str,
) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        it.clock.jump(10_000)
        await it.request("A")
        assert await it.store.expire_requests(0, 10) == 0
        assert await it.verdict(await it.reply("A", "a1")) == "send"
        events = await it.events()
        assert events.count(("request_expired", "A")) == 1
        assert events.count(("answered", "A")) == 1


async def test_places_are_removed_with_their_expired_list(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        for number in range(3):
            await it.reply("A", f"a{number}")
        # Redis expires the list; new requests keep the conversation.
        name = it.runtime.keyspace.name(keys.CONVERSATION_RESPONSES, 0, "c")
        await it.runtime.redis.call("DEL", name)
        it.clock.jump(900_000)
        await it.request("B")
        claim, due, _ = await it.store.claim_awaited(0, 10)
        outcomes = await it.store.take(due, claim)
        assert [each.status for each in outcomes] == ["expired"] * 3
        request = it.runtime.keyspace.name(keys.CONVERSATION_REQUEST, 0, "B")
        assert await order_fields(it) == {"n", f"q{request}"}
        assert [each.request_id for each in (await it.store.snapshot("c", 9)).requests] == ["B"]


# Replies about to expire


async def test_a_reply_sent_shortly_before_it_expires_can_still_be_acknowledged(
    redis_url: str,
) -> None:
    """On the real clock: Redis must not expire its place too early."""
    quick = {"message_ttl": 500, "awaited_message_ttl": 1_000, "sent_message_ttl": 20_000}
    client = Client(ack=True)
    async with instance(redis_url, client.app, conversations=quick) as bridge:
        await bridge.request("c", "A", "whatsapp")
        await bridge.reply("c", "A", "a1", task())
        await client.wait(1)
        partition = bridge.store.partition_of("c")
        name = bridge.runtime.keyspace.name
        sent = name(keys.CONVERSATION_RESPONSE, partition, "a1")

        async def is_sent() -> bool:
            return bool(await bridge.runtime.redis.call("HGET", sent, "status") == b"SENT")

        await eventually(is_sent, DEADLINE_S)
        for key in (keys.CONVERSATION_RESPONSES, keys.CONVERSATION_ORDER):
            left_ms = await bridge.runtime.redis.call("PTTL", name(key, partition, "c"))
            assert left_ms > 5_000
        found = await bridge.store.read_reply("a1", "c")
        assert found is not None
        assert found.status == "SENT"


async def test_the_end_of_a_later_reply_does_not_shorten_a_back_off(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        await it.request("B")
        first, second = await it.reply("A", "a1"), await it.reply("B", "b1")
        assert await it.store.await_replies([first], 60_000, 0, "later") == ["awaited"]
        assert (await it.store.finish(second, "deleted"))[0] == "cancelled"
        assert (await it.store.claim_awaited(0, 10))[1] == []
        it.clock.jump(60_000)
        assert (await it.store.claim_awaited(0, 10))[1] == [first]


async def test_the_first_message_has_not_expired(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        await it.reply("A", "a1")
        it.clock.jump(1_000)
        await it.reply("A", "a2")
        it.clock.jump(899_500)
        first = await it.manager.get_first_conversation_message("c")
        assert first is not None
        assert first.response_id == "a2"


# Groups larger than one call


async def test_a_large_group_is_cancelled_completely_although_its_first_was_delivered_meanwhile(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CANCEL_BATCH", 4)
    async with harness(redis_url) as it:
        await it.request("A")
        await it.request("B")
        replies = [await it.reply("A", f"a{number}") for number in range(10)]
        other = await it.reply("B", "b1")
        cancel = it.store.cancel

        async def cancel_and_deliver(
            request: MinMessageInfo, some: list[MinMessageInfo], what: CancelOptions, **more: bool
        ) -> object:
            done = await cancel(request, some, what, whole_group=more["whole_group"])
            await it.store.finish(replies[0], "unasked")
            return done

        monkeypatch.setattr(it.store, "cancel", cancel_and_deliver)
        assert await it.manager.cancel_group(replies[0], "over") == 9
        with pytest.raises(RequestUnknown):
            await it.reply("A", "late")
        assert await it.verdict(other) == "send"
        left = await it.store.snapshot("c", 20)
        assert [each.response_id for each in left.replies] == ["b1"]
        assert await it.store.read_request("A", "c") is None


async def test_large_replies_are_taken_a_few_at_a_time(redis_url: str) -> None:
    large = b'{"messageOptions":{"payload":"' + b"x" * (5 << 20) + b'"}}'
    async with harness(redis_url) as it:
        for name in ("A", "B", "C"):
            await it.request(name, name)
            await it.store.accept_reply(NewReply(name, name, name, 2, large))
        assert [each.status for each in await it.claim()] == ["taken", "taken", "later"]
        assert [each.status for each in await it.claim()] == ["taken"]
        it.clock.jump(30_000)
        claim, due, _ = await it.store.claim_awaited(0, 10)
        statuses = [each.status for each in await it.store.take(due, claim)]
        assert statuses == ["taken", "taken", "later"]
        assert (await it.store.claim_awaited(0, 10))[1] == due[2:]


async def test_a_view_of_a_conversation_does_not_read_the_tasks_of_its_replies(
    redis_url: str,
) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        await it.reply("A", "a1")
        name = it.runtime.keyspace.name(keys.CONVERSATION_RESPONSE, 0, "a1")
        await it.runtime.redis.call("HSET", name, "taskItem", "[" * 10_000)
        (only,) = (await view_conversation(it.store, "c")).replies
        assert (only.reply.status, only.reason.why) == ("PENDING", "send")
        found = await it.manager.get_conversation_message(SyncMessageOptions("a1"))
        assert "taskItem" not in found


# Odd input of callers, senders and clients


@pytest.mark.parametrize("wrong", [1.5, float("nan"), -1, 2**60, "1", True])
async def test_a_timestamp_that_is_no_whole_number_is_refused(
    redis_url: str, wrong: object
) -> None:
    async with harness(redis_url) as it:
        with pytest.raises(InputInvalid, match="timestamp"):
            await it.manager.create_conversation_register(
                "web",
                "c",
                "A",
                request_timestamp=wrong,  # type: ignore[arg-type]
            )
        await it.request("A")
        with pytest.raises(InputInvalid, match="timestamp"):
            await it.manager.mark_pending_conversation_register(
                "",
                "c",
                "A",
                task(),
                "",
                "a1",
                response_timestamp=wrong,  # type: ignore[arg-type]
            )


async def test_a_reply_that_cannot_be_read_does_not_block_the_others(redis_url: str) -> None:
    async with harness(redis_url) as it:
        for name in ("A", "B"):
            await it.request(name, name)
            await it.reply(name, name, name, held=False)
        name = it.runtime.keyspace.name(keys.CONVERSATION_RESPONSE, 0, "A")
        await it.runtime.redis.call("HSET", name, "requestTimestamp", "1.5e300")
        taken = await it.manager.get_awaited_messages(10)
        assert [each.info.response_id for each in taken] == ["B"]
        assert ("dead", "A") in await it.events()


class Rude(BaseException):
    pass


KINDS = [Rude, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["async", "sync", "thread"])
async def test_a_sender_may_raise_anything(
    redis_url: str, kind: type[BaseException], way: str
) -> None:
    app = Application()
    sent: list[str] = []

    def send(reply: OutgoingReply) -> None:
        if reply.conversation_id == "bad":
            raise kind
        sent.append(reply.response_id)

    async def send_async(reply: OutgoingReply) -> None:
        send(reply)

    async def send_thread(reply: OutgoingReply) -> None:
        await asyncio.to_thread(send, reply)

    app.reply_sender()({"sync": send, "async": send_async, "thread": send_thread}[way])
    async with instance(redis_url, app) as bridge:
        for name in ("bad", "good"):
            await bridge.request(name, name, "whatsapp")
            await bridge.reply(name, name, name, task())
        await eventually(lambda: sent == ["good"] and bridge.awaited == 1, DEADLINE_S)
        await bridge.request("good", "later", "whatsapp")
        await bridge.reply("good", "later", "later", task())
        await eventually(lambda: sent == ["good", "later"], DEADLINE_S)


async def test_a_sender_gets_the_time_at_which_the_reply_was_made(redis_url: str) -> None:
    times: list[int] = []
    app = Application()

    @app.reply_sender()
    async def send(reply: OutgoingReply) -> None:
        times.append(reply.response_timestamp)

    async with instance(redis_url, app) as bridge:
        await bridge.request("c", "A", "whatsapp")
        await bridge.reply("c", "A", "a1", task())
        await eventually(lambda: len(times) == 1, DEADLINE_S)
        assert times[0] > 1_600_000_000_000


@pytest.mark.parametrize("odd", ODD)
async def test_odd_ids_go_through_every_state(redis_url: str, odd: str) -> None:
    async with harness(redis_url) as it:
        await it.request(odd, odd)
        await it.request(f"{odd}2", odd)
        sent = await it.reply(odd, odd, odd)
        await it.store.report_sent(sent, odd)
        options = SyncMessageOptions(async_response_id=odd)
        assert await it.manager.delete_conversation_message(options) == "delivered"
        cancelled = await it.reply(f"{odd}2", f"{odd}2", odd)
        assert await it.manager.cancel_group(cancelled, odd) == 1
        await it.request(f"{odd}3", odd)
        it.clock.jump(10_000)
        assert await it.store.expire_requests(0, 10) == 1
        events = await it.events()
        for event in (("delivered", odd), ("cancelled", f"{odd}2"), ("request_expired", f"{odd}3")):
            assert events.count(event) == 1


@pytest.mark.parametrize("odd", ODD)
async def test_a_callback_of_any_id_arrives(redis_url: str, odd: str) -> None:
    async with (
        receiver() as client,
        instance(redis_url, Application(), allow_private_addresses=True) as bridge,
    ):
        await bridge.request("c", "A", "whatsapp")
        await bridge.reply("c", "A", odd, task(1, callback_url=client.url))
        await client.wait_for_all([odd])
        await settled(bridge)


@pytest.mark.parametrize("odd", [*ODD[1:], "requests", "a/b/c", "/", "a//b", "?x=1#y"])
async def test_any_conversation_can_be_shown_over_http(redis_url: str, odd: str) -> None:
    async with running_api(redis_url) as (api, _):
        assert await api.post("requests", opening("A", odd)) == (201, "created")
        status, shown = await get_encoded(api, odd)
        assert (status, shown["conversation_id"], shown["requests_total"]) == (200, odd, 1)


async def test_a_conversation_without_an_id_is_refused_over_http(redis_url: str) -> None:
    async with running_api(redis_url) as (api, _):
        status, problem = await get_encoded(api, "")
        assert (status, problem["code"]) == (400, "id_refused")


async def get_encoded(api: ApiClient, conversation_id: str) -> tuple[int, dict[str, object]]:
    async with aiohttp.ClientSession() as session:
        url = f"{api.url}/{quote(conversation_id, safe='')}"
        async with session.get(URL(url, encoded=True)) as response:
            return response.status, await response.json(content_type=None)


@pytest.mark.parametrize("odd", ODD)
async def test_the_command_prints_no_control_characters_of_an_id(
    redis_url: str, odd: str, no_settings: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id with a line break adds no line either."""
    async with harness(redis_url) as it:
        for conversation_id in (odd, "plain"):
            await it.request(f"{conversation_id}-A", conversation_id)
            await it.request(f"{conversation_id}-B", conversation_id)
            await it.reply(f"{conversation_id}-B", f"{conversation_id}-b", conversation_id)
        monkeypatch.setenv("ANGARIUM_REDIS_URL", redis_url)
        monkeypatch.setenv("ANGARIUM_PREFIX", it.runtime.settings.prefix)
        found, plain = [await printed(conversation_id) for conversation_id in (odd, "plain")]
    assert len(found.splitlines()) == len(plain.splitlines())
    assert all(char.isprintable() for line in found.splitlines() for char in line)
    if odd.isprintable():
        assert odd in found


async def printed(conversation_id: str) -> str:
    """The output of `angarium conversation show`."""
    output = io.StringIO()
    with redirect_stdout(output):
        assert await asyncio.to_thread(command.show, conversation_id) == 0
    return output.getvalue()


@pytest.mark.limit("conversation_requests_max")
async def test_a_full_conversation_takes_requests_again_when_old_ones_have_expired(
    redis_url: str,
) -> None:
    async with harness(redis_url, limits={"conversation_requests_max": 2}) as it:
        await it.request("A")
        await it.request("B")
        with pytest.raises(Overloaded):
            await it.request("C")
        it.clock.jump(10_000)
        await it.store.expire_requests(0, 10)
        assert await it.request("C") == 3
        assert await it.verdict(await it.reply("C", "c1")) == "send"
