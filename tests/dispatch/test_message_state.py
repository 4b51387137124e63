"""What became of a message: each place that it can be in, failures, results, waiting."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from angarium.dispatch import message_state, transitions
from angarium.dispatch.errors import MessageUnknown
from angarium.dispatch.failures import LINE_END, failure_text, frames_of, split_failure
from angarium.dispatch.message_ids import new_ids
from angarium.dispatch.message_state import MessageState, MessageStates
from angarium.dispatch.transitions import FoundEntry, Searched
from tests.dispatch.harness import StoreHarness, dispatch_services, store_harness


async def test_a_message_is_found_wherever_it_is(any_redis_url: str) -> None:
    async with store_harness(any_redis_url, dispatch={"deliveries_max": 2}) as ours:
        states = MessageStates(ours.runtime)

        async def state(message_id: bytes) -> MessageState:
            return await states.find(message_id.decode())

        one, two = await ours.accepted(b'{"n":1}', b"2")
        assert (await state(one)).state == "pending"
        assert (await states.payload(one.decode())).payload == '{"n":1}'
        await ours.complete(one, consumer="w7")
        found = await state(one)
        assert (found.state, found.consumer, found.final) == ("completed", "w7", True)
        await ours.reject(two, "w1: no", 0)
        assert (await state(two)).reasons == ["w1: no"]
        assert await ours.claim()
        await ours.reject(two, failure_text("w1: never", "File a␤x = 1"))
        found = await state(two)
        assert (found.state, found.deliveries, found.reasons, found.traceback) == (
            "dead", 2, ["w1: no", "w1: never"], "File a\nx = 1",
        )  # fmt: skip
        assert (await states.payload(two.decode())).payload == "2"
        with pytest.raises(MessageUnknown):
            await states.payload(one.decode())


async def test_a_durable_message_is_queued_until_a_leader_accepts_it(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        states = MessageStates(ours.runtime)
        sent = await ours.store.enqueue(b'{"n": 1}')
        found = await states.find(sent.message_id)
        assert (found.state, found.final) == ("queued", False)
        assert (await states.payload(sent.message_id.upper())).payload == '{"n": 1}'
        for each in new_ids(3):
            with pytest.raises(MessageUnknown, match="angarium find"):
                await states.find(each.decode())
        with pytest.raises(MessageUnknown, match="is no id"):
            await states.find("\x1b[2J")


@pytest.mark.limit("result_search_entries_max")
async def test_a_result_is_searched_as_far_back_as_the_limit(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_state, "ENTRIES_PER_CALL", 100)
    limit = {"result_search_entries_max": 300}
    async with store_harness(redis_url, limits=limit) as ours:
        states = MessageStates(ours.runtime)
        ids = await completed(ours, 301)
        assert (await states.find(ids[1].decode())).state == "completed"
        with pytest.raises(MessageUnknown, match="among the newest 300"):
            await states.find(ids[0].decode())
        part = await ours.store.find_entry(transitions.FIND_RESULT, ids[0].decode(), 70)
        assert isinstance(part, Searched)
        assert part.oldest
        rest = await ours.store.find_entry(
            transitions.FIND_RESULT, ids[0].decode(), 231, until_id=f"({part.oldest}"
        )
        assert isinstance(rest, FoundEntry)


async def test_the_newest_results_are_listed_with_long_fields_cut(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        ids = await ours.accepted(*(b"%d" % number for number in range(25)))
        for each in ids:
            await ours.complete_all("w1", [(each, ["n", "x" * 300, b"\xff", b""])])
        found = await MessageStates(ours.runtime).newest_results(23)
        assert [each.message_id for each in found] == [each.decode() for each in ids[:1:-1]]
        assert found[0].result == {"n": "x" * 200, "\ufffd": ""}
        assert len(await MessageStates(ours.runtime).newest_results(500)) == 25


async def completed(ours: StoreHarness, count: int) -> list[bytes]:
    ids = await ours.accepted(*(b"%d" % number for number in range(count)))
    for each in ids:
        await ours.complete(each)
    return ids


async def test_only_the_newest_failure_keeps_its_traceback(redis_url: str) -> None:
    async with store_harness(redis_url) as ours:
        (message_id,) = await ours.accepted(b"1")
        for number in range(3):
            await ours.reject(message_id, failure_text(f"no {number}", f"frame {number}"), 0)
            assert await ours.claim()
        stored = (await ours.state()).attempts[message_id].decode()
        assert stored.count(LINE_END) == 1
        found = await MessageStates(ours.runtime).find(message_id.decode())
        assert (found.reasons, found.traceback) == (["no 0", "no 1", "no 2"], "frame 2")


def test_frames_keep_their_indentation_and_their_innermost_lines() -> None:
    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        raise ValueError("x")

    try:
        deep(100)
    except ValueError as error:
        frames = frames_of(error)
    assert "\n" not in frames
    _, shown = split_failure(failure_text("ValueError: x", frames))
    assert shown.splitlines()[-1].strip().startswith(('raise ValueError("x")', "~", "^"))
    assert shown.splitlines()[-2].startswith(("  File", "    "))
    assert len(frames) <= 2_000


async def test_waiting_ends_with_the_result_of_a_worker(any_redis_url: str) -> None:
    async def greet(message: dict[str, Any]) -> dict[str, Any]:
        if "fail" in message:
            raise LookupError("no such\nname")
        return {"text": f"hello, {message['name']}", "count": 2, "list": [1]}

    async with dispatch_services(any_redis_url, deliveries_max=1) as ours:
        states = MessageStates(ours.runtime)
        await ours.add_dispatcher()
        store = states._store
        waited = await store.enqueue(b'{"name": "Xerxes"}')
        assert not (await states.wait(waited.message_id, 0.05)).final
        waiting = asyncio.create_task(states.wait(waited.message_id, 60))
        await ours.add_worker(greet)
        found = await waiting
        assert (found.state, found.result) == (
            "completed", {"text": "hello, Xerxes", "count": "2", "list": "[1]"},
        )  # fmt: skip
        failed = await states.wait((await store.enqueue(b'{"fail": 1}')).message_id, 60)
        assert failed.state == "dead"
        assert failed.reasons[-1].endswith("LookupError: no such name")
        assert 'raise LookupError("no such\\nname")' in failed.traceback
