"""Batching without Redis: what is gathered, who gets which result, what happens at the limits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from angarium.runtime.batching import Batcher, BytesUnanswered
from angarium.runtime.errors import Overloaded, RedisUnavailable, ScriptFailed
from angarium.runtime.limits import Limits
from tests.kit.eventually import eventually


class Recorder:
    """A `run` that can be held up, and remembers each batch."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[int]]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def run(self, partition: int, items: list[int]) -> Sequence[int | Exception]:
        self.batches.append((partition, items))
        await self.gate.wait()
        return [ValueError(item) if item < 0 else item * 10 for item in items]


async def test_calls_of_one_turn_share_one_batch() -> None:
    recorder = Recorder()
    async with Batcher(recorder.run, Limits()) as batcher:
        results = await asyncio.gather(*(batcher.submit(0, item) for item in range(20)))
    assert results == [item * 10 for item in range(20)]
    assert recorder.batches == [(0, list(range(20)))]


async def test_many_calls_leave_in_two_halves_that_overlap() -> None:
    recorder = Recorder()
    recorder.gate.clear()
    async with Batcher(recorder.run, Limits()) as batcher:
        futures = [batcher.submit(0, item) for item in range(64)]
        await eventually(lambda: len(recorder.batches) == 2)
        late = batcher.submit(0, 64)
        recorder.gate.set()
        assert await asyncio.gather(*futures, late) == [item * 10 for item in range(65)]
    assert recorder.batches[:2] == [(0, list(range(32))), (0, list(range(32, 64)))]
    assert recorder.batches[2:] == [(0, [64])], "a third waits until one is back"


async def test_items_of_one_order_never_overtake_each_other() -> None:
    recorder = Recorder()
    recorder.gate.clear()
    async with Batcher(recorder.run, Limits()) as batcher:
        first = batcher.submit(0, 1, "anna")
        await eventually(lambda: len(recorder.batches) == 1)
        later = [
            batcher.submit(0, 2, "anna"),
            batcher.submit(0, 3, "bert"),
            batcher.submit(0, 4, "anna"),
            batcher.submit(0, 5),
        ]
        await eventually(lambda: len(recorder.batches) == 2)
        recorder.gate.set()
        await asyncio.gather(first, *later)
    assert recorder.batches == [(0, [1]), (0, [3, 5]), (0, [2, 4])]


async def test_a_flood_of_one_order_goes_in_whole_batches() -> None:
    recorder = Recorder()
    async with Batcher(recorder.run, Limits(batch_items_max=100)) as batcher:
        await asyncio.gather(*(batcher.submit(0, item, "one") for item in range(5_000)))
    assert [item for _, items in recorder.batches for item in items] == list(range(5_000))
    assert len(recorder.batches) <= 52, "the last hundred may leave in halves"


async def test_a_lone_call_leaves_at_once() -> None:
    recorder = Recorder()
    async with Batcher(recorder.run, Limits()) as batcher:
        assert await batcher.submit(0, 7) == 70
        assert await batcher.submit(0, 8) == 80
    assert recorder.batches == [(0, [7]), (0, [8])]


async def test_what_arrives_during_a_call_forms_the_next_batch_in_order() -> None:
    recorder = Recorder()
    recorder.gate.clear()
    async with Batcher(recorder.run, Limits()) as batcher:
        first = batcher.submit(0, 0)
        await asyncio.sleep(0)
        later = [batcher.submit(0, item) for item in (3, 1, 2)]
        recorder.gate.set()
        await asyncio.gather(first, *later)
    assert recorder.batches == [(0, [0]), (0, [3, 1, 2])]


async def test_partitions_do_not_wait_for_each_other() -> None:
    recorder = Recorder()
    release = asyncio.Event()

    async def run(partition: int, items: list[int]) -> Sequence[int | Exception]:
        if partition == 0:
            await release.wait()
        return await recorder.run(partition, items)

    async with Batcher(run, Limits()) as batcher:
        slow = batcher.submit(0, 1)
        assert await batcher.submit(1, 2) == 20
        assert not slow.done()
        release.set()
        assert await slow == 10


async def test_an_items_error_reaches_its_caller_only() -> None:
    recorder = Recorder()
    async with Batcher(recorder.run, Limits()) as batcher:
        good, bad = batcher.submit(0, 1), batcher.submit(0, -5)
        with pytest.raises(ValueError, match="-5"):
            await bad
        assert await good == 10


async def test_a_failed_batch_fails_its_callers_and_the_next_goes_on() -> None:
    async def run(partition: int, items: list[int]) -> Sequence[int | Exception]:
        if 13 in items:
            raise RedisUnavailable("gone")
        return items

    async with Batcher(run, Limits()) as batcher:
        unlucky = [batcher.submit(0, item) for item in (12, 13)]
        for future in unlucky:
            with pytest.raises(RedisUnavailable):
                await future
        assert await batcher.submit(0, 14) == 14


async def test_a_short_answer_is_an_error_not_a_mixup() -> None:
    async def run(partition: int, items: list[int]) -> Sequence[int | Exception]:
        return items[:-1]

    async with Batcher(run, Limits()) as batcher:
        futures = [batcher.submit(0, item) for item in (1, 2)]
        for future in futures:
            with pytest.raises(ScriptFailed):
                await future


@pytest.mark.limit("batch_items_max", "batch_bytes_max")
async def test_items_and_bytes_bound_a_batch() -> None:
    recorder = Recorder()
    limits = Limits(batch_items_max=3, batch_bytes_max=100)
    async with Batcher(recorder.run, limits) as batcher:
        sizes = [10, 10, 10, 10, 60, 50, 500, 1]
        await asyncio.gather(*(batcher.submit(0, n, None, size) for n, size in enumerate(sizes)))
    assert [items for _, items in recorder.batches] == [[0, 1, 2], [3, 4], [5], [6], [7]]


@pytest.mark.limit("batch_waiting_items_max")
async def test_a_full_queue_refuses_instead_of_growing() -> None:
    recorder = Recorder()
    recorder.gate.clear()
    async with Batcher(recorder.run, Limits(batch_waiting_items_max=2)) as batcher:
        first = batcher.submit(0, 0)
        await asyncio.sleep(0)
        waiting = [batcher.submit(0, 1), batcher.submit(0, 2)]
        with pytest.raises(Overloaded, match="batch_waiting_items_max"):
            batcher.submit(0, 3)
        recorder.gate.set()
        await asyncio.gather(first, *waiting)
        assert await batcher.submit(0, 4) == 40


@pytest.mark.limit("batch_waiting_bytes_max")
async def test_payloads_without_an_answer_are_bounded_in_bytes_over_all_batchers() -> None:
    recorder = Recorder()
    recorder.gate.clear()
    limits = Limits(batch_waiting_bytes_max=100)
    unanswered = BytesUnanswered(limits)
    async with (
        Batcher(recorder.run, limits, unanswered) as batcher,
        Batcher(recorder.run, limits, unanswered) as other,
    ):
        in_flight = batcher.submit(0, 0, None, 60)
        await asyncio.sleep(0)
        waiting = other.submit(0, 1, None, 40)
        for each in (batcher, other):
            with pytest.raises(Overloaded, match="batch_waiting_bytes_max"):
                each.submit(0, 2, None, 1)
        # What carries no payload is not refused, however large its answer may be.
        small = batcher.submit(0, 3, None, 0, 10_000)
        waiting.cancel()
        recorder.gate.set()
        await asyncio.gather(in_flight, small)
        await eventually(lambda: unanswered.count == 0)
        assert await batcher.submit(0, 4, None, 100) == 40
    assert unanswered.count == 0


async def test_an_item_above_the_limit_goes_when_nothing_else_is_under_way() -> None:
    recorder = Recorder()
    async with Batcher(recorder.run, Limits(batch_waiting_bytes_max=100)) as batcher:
        large = batcher.submit(0, 1, None, 500)
        with pytest.raises(Overloaded):
            batcher.submit(0, 2, None, 1)
        assert await large == 10


async def test_a_batch_that_fails_gives_its_bytes_back() -> None:
    async def run(partition: int, items: list[int]) -> Sequence[int | Exception]:
        raise RuntimeError("no")

    async with Batcher(run, Limits(batch_waiting_bytes_max=100)) as batcher:
        for _ in range(3):
            with pytest.raises(RuntimeError):
                await batcher.submit(0, 1, None, 100)


async def test_a_caller_that_gave_up_is_left_out() -> None:
    recorder = Recorder()
    recorder.gate.clear()
    async with Batcher(recorder.run, Limits()) as batcher:
        first = batcher.submit(0, 0)
        await asyncio.sleep(0)
        given_up, kept = batcher.submit(0, 1), batcher.submit(0, 2)
        given_up.cancel()
        recorder.gate.set()
        assert (await first, await kept) == (0, 20)
    assert [items for _, items in recorder.batches] == [[0], [2]]


async def test_closing_finishes_what_was_taken_and_takes_no_more() -> None:
    recorder = Recorder()
    batcher = Batcher(recorder.run, Limits())
    taken = batcher.submit(0, 1)
    await batcher.close()
    assert taken.result() == 10
    with pytest.raises(RedisUnavailable):
        batcher.submit(0, 2)


async def test_a_receiver_gets_each_batch_with_its_results() -> None:
    recorder = Recorder()
    received: list[tuple[list[int], list[str]]] = []

    def receive(items: Sequence[int], results: Sequence[int | Exception]) -> None:
        received.append(([*items], [repr(each) for each in results]))

    unanswered = BytesUnanswered(Limits())
    async with Batcher(recorder.run, Limits(), unanswered, receive) as batcher:
        for item in (1, -2, 3):
            batcher.send(0, item, 100)
        assert unanswered.count == 300
    assert received == [([1, -2, 3], ["10", "ValueError(-2)", "30"])]
    assert unanswered.count == 0
    with pytest.raises(RedisUnavailable):
        batcher.send(0, 4)
