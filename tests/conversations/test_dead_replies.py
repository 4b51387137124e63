"""Dead replies: pages and reasons, retrying and dropping all, and what can't be retried."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from angarium.conversations import keys
from angarium.conversations.dead_replies import CHUNK, DeadReplies
from angarium.conversations.service import ConversationService
from angarium.runtime.dead_letters import DeadLetterUnknown, DeadLetterUnusable
from angarium.runtime.errors import Conflict, Overloaded
from tests.conversations.harness import Harness, harness, info


class DeadHarness(Harness):
    @property
    def dead(self) -> DeadReplies:
        return self.manager.dead

    async def die(self, why: str, *ids: str, conversation_id: str = "c") -> None:
        """Replies of one request, cancelled at the same time; a millisecond passes."""
        request = f"r-{ids[0]}"
        await self.request(request, conversation_id)
        for id in ids:
            await self.reply(request, id, conversation_id)
        await self.cancel(why, request, conversation_id)

    async def cancel(self, why: str, request: str, conversation_id: str = "c") -> None:
        which = info(request, "", conversation_id)
        assert await self.manager.cancel_group(which, why, dead=True) > 0
        self.clock.jump(1)

    async def ids(self, reason: str = "") -> list[str]:
        return [each.id for each in (await self.dead.page(500, None, reason)).letters]

    async def set_field(self, id: str, name: str, value: str) -> None:
        key = self.runtime.keyspace.name(keys.DEAD_REPLY, self.store.partition_of("c"), id)
        await self.runtime.redis.call("HSET", key, name, value, key=key)

    async def in_flight(self, conversation_id: str = "c") -> list[str]:
        shown = await self.manager.show(conversation_id, 1_000)
        return [each.reply.response_id for each in shown.replies]


@asynccontextmanager
async def dead_harness(redis_url: str, **overrides: Any) -> AsyncIterator[DeadHarness]:
    async with harness(redis_url, **overrides) as it:
        yield DeadHarness(it.runtime, it.clock)


# Pages


async def test_a_reason_is_found_behind_many_others(redis_url: str) -> None:
    async with dead_harness(redis_url) as it:
        await it.die("503 busy", *(f"a{number}" for number in range(2 * CHUNK + 50)))
        await it.die("403 no", "b1")
        await it.die("503 busy", "b2")
        await it.die("403 no", "b3")
        page = await it.dead.page(1, None, "403")
        assert [each.id for each in page.letters] == ["b1"]
        rest = await it.dead.page(1, page.next, "403")
        assert ([each.id for each in rest.letters], rest.next) == (["b3"], None)
        assert await it.ids("404") == []


async def test_pages_end_and_begin_within_one_millisecond(any_redis_url: str) -> None:
    async with dead_harness(any_redis_url) as it:
        ids = {f"a{number}" for number in range(2 * CHUNK + 3)}
        await it.die("no", *ids)
        await it.die("no", *(others := {f"d{number}" for number in range(5)}), conversation_id="d")
        found, after = [], None
        while True:
            page = await it.dead.page(70, after)
            found += [each.id for each in page.letters]
            if (after := page.next) is None:
                break
        assert len(found) == len(ids | others)
        assert set(found) == ids | others


async def test_a_page_skips_nothing_when_earlier_replies_were_dropped(redis_url: str) -> None:
    async with dead_harness(redis_url) as it:
        await it.die("no", "a1", "a2", "a3", "a4")
        await it.die("no", "b1")
        page = await it.dead.page(2)
        for each in page.letters:
            await it.dead.drop(each.id)
        rest = await it.dead.page(5, page.next)
        assert [each.id for each in rest.letters] == ["a3", "a4", "b1"]


async def test_a_member_that_another_program_wrote_hides_no_dead_reply(redis_url: str) -> None:
    async with dead_harness(redis_url) as it:
        await it.die("no", "a1")
        name = it.runtime.keyspace.name(keys.DEAD_REPLIES, 0)
        await it.runtime.redis.call("ZADD", name, 1, "nonsense", key=name)
        page = await it.dead.page(1)
        assert ([each.id for each in page.letters], page.next) == (["a1"], None)


async def test_an_expired_or_replaced_dead_reply_is_not_listed(redis_url: str) -> None:
    """The sorted set keeps its member for longer than the hash lives."""
    async with dead_harness(redis_url) as it:
        await it.die("no", "a1")
        await it.die("no", "a2")
        name = it.runtime.keyspace.name(keys.DEAD_REPLY, 0, "a1")
        await it.runtime.redis.call("DEL", name, key=name)
        assert await it.ids() == ["a2"]
        await it.request("d1", "d")
        await it.reply("d1", "a2", "d")
        await it.cancel("later", "d1", "d")
        (left,) = (await it.dead.page()).letters
        assert (left.conversation_id, left.reason) == ("d", "later")
        assert await it.dead.drop_all() == 1


# One


async def test_a_reply_whose_content_cannot_be_read_can_only_be_dropped(redis_url: str) -> None:
    async with dead_harness(redis_url) as it:
        await it.die("no", "a1", "a2", "a3", "a4")
        await it.set_field("a1", "taskItem", "[" * 10_000)
        await it.set_field("a2", "responseTimestamp", "soon")
        await it.set_field("a3", "origin", "")
        for id in ("a1", "a2", "a3"):
            with pytest.raises(DeadLetterUnusable):
                await it.dead.retry(id)
        assert (await it.dead.find("a1")).task is None
        assert await it.dead.retry_all() == {"retried": 1, "unusable": 3}
        assert await it.ids() == ["a1", "a2", "a3"]
        await it.dead.drop("a1")
        assert await it.dead.drop_all() == 2
        assert await it.dead.count() == 0


async def test_an_id_in_two_partitions_is_refused_with_both_conversations(redis_url: str) -> None:
    async with dead_harness(redis_url, partitions=4) as it:
        other = next(
            id
            for id in map(str, range(100))
            if it.store.partition_of(id) != it.store.partition_of("c")
        )
        for id in ("c", other):
            await it.request(f"r-{id}", id)
            await it.reply(f"r-{id}", "same", id)
            await it.cancel("no", f"r-{id}", id)
        for act in (it.dead.find, it.dead.retry, it.dead.drop):
            with pytest.raises(Conflict) as refused:
                await act("same")
            assert "'c'" in str(refused.value)
            assert repr(other) in str(refused.value)
        assert await it.dead.retry_all() == {"retried": 2, "unusable": 0}
        assert (await it.in_flight("c"), await it.in_flight(other)) == (["same"], ["same"])


async def test_a_reply_that_dies_again_while_it_is_retried_is_kept(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dead_harness(redis_url) as it:
        await it.die("first", "a1")
        accept = it.store.accept_reply

        async def accept_and_fail(new: Any) -> Any:
            accepted = await accept(new)
            await it.cancel("second", "r-a1")
            return accepted

        monkeypatch.setattr(it.store, "accept_reply", accept_and_fail)
        await it.dead.retry("a1")
        assert (await it.dead.find("a1")).reason == "second"


# All


async def test_all_of_a_reason_are_retried_in_the_order_of_their_conversation(
    any_redis_url: str,
) -> None:
    async with dead_harness(any_redis_url) as it:
        ids = [f"a{number}" for number in range(12)]
        await it.die("503 busy", *ids)
        await it.die("403 no", "b1")
        await it.die("503 busy", "z1", "a-late")
        await it.die("503 busy", "d1", conversation_id="d")
        assert await it.dead.retry_all("503") == {"retried": 15, "unusable": 0}
        assert await it.in_flight() == [*ids, "z1", "a-late"]
        assert await it.in_flight("d") == ["d1"]
        assert await it.ids() == ["b1"]


async def test_a_long_group_that_died_from_its_end_is_retried_from_its_start(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angarium.conversations.service.CANCEL_BATCH", 5)
    async with dead_harness(redis_url) as it:
        cancel = it.store.cancel

        async def cancel_slowly(*given: Any, **options: Any) -> Any:
            it.clock.jump(1)
            return await cancel(*given, **options)

        monkeypatch.setattr(it.store, "cancel", cancel_slowly)
        ids = [f"a{number}" for number in range(12)]
        await it.die("no", *ids)
        assert (await it.ids())[0] == "a10"
        await it.dead.retry_all()
        assert await it.in_flight() == ids


async def test_what_somebody_else_handled_meanwhile_is_left_out(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dead_harness(redis_url) as it:
        for id in ("a1", "a2", "a3"):
            await it.die("no", id)
        other, retry = ConversationService(it.runtime).dead, it.dead._retry

        async def interfere(found: Any) -> None:
            await retry(found)
            if found.info.response_id == "a1":
                await other.drop("a2")
                await other.retry("a3")
                await it.cancel("again", "r-a3")

        monkeypatch.setattr(it.dead, "_retry", interfere)
        assert await it.dead.retry_all() == {"retried": 1, "unusable": 0}
        (left,) = (await it.dead.page()).letters
        assert (left.id, left.reason) == ("a3", "again")


async def test_a_reply_id_that_is_in_use_again_is_not_retried(redis_url: str) -> None:
    async with dead_harness(redis_url) as it:
        await it.die("no", "a1")
        await it.die("no", "a2")
        await it.request("B")
        await it.reply("B", "a1")
        with pytest.raises(Conflict):
            await it.dead.retry("a1")
        assert await it.dead.retry_all() == {"retried": 1, "unusable": 1}
        assert await it.ids() == ["a1"]


async def test_a_full_conversation_ends_retrying_and_the_rest_stays_dead(redis_url: str) -> None:
    async with dead_harness(redis_url, limits={"conversation_replies_max": 2}) as it:
        for id in ("a1", "a2", "a3"):
            await it.die("no", id)
        with pytest.raises(Overloaded, match="conversation_replies_max"):
            await it.dead.retry_all()
        assert await it.in_flight() == ["a1", "a2"]
        assert await it.ids() == ["a3"]


async def test_all_of_a_reason_are_dropped(any_redis_url: str) -> None:
    async with dead_harness(any_redis_url) as it:
        await it.die("503 busy", *(f"a{number}" for number in range(CHUNK + 7)))
        await it.die("403 no", "b1")
        await it.die("503 busy", "d1", conversation_id="d")
        assert await it.dead.drop_all("503") == CHUNK + 8
        assert await it.ids() == ["b1"]
        with pytest.raises(DeadLetterUnknown):
            await it.dead.find("d1")
        assert await it.dead.drop_all() == 1
        assert await it.dead.drop_all() == 0
