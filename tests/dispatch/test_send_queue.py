"""The send queue: order, limits, expiry."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.dispatch.frames import DispatchedMessage
from angarium.dispatch.limits import DispatchLimits
from angarium.dispatch.message_ids import new_ids
from angarium.dispatch.protocol import Hello
from angarium.dispatch.send_queue import EXPIRY_PART, FULL_PART, SendQueue
from angarium.dispatch.worker_connection import WorkerConnection
from angarium.dispatch.worker_pool import WorkerPool
from tests.dispatch.scripted_worker import DEADLINE_S, pool_harness, scripted_worker
from tests.kit.clock import FakeClock
from tests.kit.eventually import eventually

LIMITS = DispatchLimits(ready_bytes_max=1_000_000)
MESSAGES_MAX = LIMITS.ready_messages_max
TIMEOUT_S = 2.0


class PoolWithSlots(WorkerPool):
    """A pool whose free slots the test sets. It records the sent messages."""

    def __init__(self) -> None:
        self.free = 0
        self.sent: list[tuple[DispatchedMessage, WorkerConnection | None]] = []

    def distribute(
        self,
        messages: Sequence[DispatchedMessage],
        avoid: Sequence[WorkerConnection | None] = (),
        queue: str = "",
    ) -> int:
        count = min(self.free, len(messages))
        self.free -= count
        last: Sequence[WorkerConnection | None] = avoid or [None] * len(messages)
        self.sent += zip(messages[:count], last, strict=False)
        return count


def numbered(*numbers: int) -> list[DispatchedMessage]:
    return [(b"%d" % number, b"payload of %d" % number) for number in numbers]


def queue_on(pool: WorkerPool, clock: FakeClock) -> SendQueue:
    return SendQueue(pool, clock, TIMEOUT_S, LIMITS)


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 5)),
            st.tuples(st.just("space"), st.integers(0, 7)),
        ),
        max_size=30,
    )
)
def test_every_message_is_sent_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    pool = PoolWithSlots()
    queue = queue_on(pool, FakeClock())
    added: list[tuple[DispatchedMessage, WorkerConnection | None]] = []
    for number, (step, count) in enumerate(steps):
        if step == "add":
            chunk = numbered(*range(len(added), len(added) + count))
            # Redelivered messages have a connection to avoid each; new ones have none.
            avoid: list[WorkerConnection | None] = [None] * count if number % 2 else []
            queue.add(chunk, avoid)
            added += [(each, None) for each in chunk]
        else:
            pool.free = count
            expected = min(count, len(added) - len(pool.sent))
            assert queue.send() == expected
        assert pool.sent == added[: len(pool.sent)]
        assert bool(queue) == (len(pool.sent) < len(added))
        assert queue.free_slots == MESSAGES_MAX - (len(added) - len(pool.sent))


async def test_a_split_chunk_keeps_the_connection_to_avoid_of_each_message() -> None:
    async with (
        scripted_worker(Hello(window=1)) as a,
        scripted_worker(Hello(window=3)) as b,
        pool_harness() as ours,
    ):
        first, second = await ours.connect(a, b)
        queue = queue_on(ours.pool, FakeClock())
        messages = [(message_id, b"{}") for message_id in new_ids(4)]
        queue.add(messages[:3], [second, first, first])
        queue.add(messages[3:], [first])
        assert queue.send() == 4
        await eventually(lambda: len(a.messages) + len(b.messages) == 4, DEADLINE_S)
        assert a.messages == messages[:1]
        assert b.messages == messages[1:]
        assert not queue


async def test_a_split_chunk_continues_with_its_next_message() -> None:
    async with scripted_worker(Hello(window=2)) as a, pool_harness() as ours:
        await ours.connect(a)
        queue = queue_on(ours.pool, FakeClock())
        messages = [(message_id, b"{}") for message_id in new_ids(5)]
        queue.add(messages)
        assert queue.send() == 2
        assert queue.send() == 0
        await eventually(lambda: a.messages == messages[:2], DEADLINE_S)
        a.acknowledge(messages[0][0])
        await eventually(lambda: ours.pool.free_slots == 1, DEADLINE_S)
        assert queue.send() == 1
        await eventually(lambda: a.messages == messages[:3], DEADLINE_S)
        assert queue


async def test_a_queue_with_an_old_first_message_is_full() -> None:
    clock, pool = FakeClock(), PoolWithSlots()
    queue = queue_on(pool, clock)
    queue.add(numbered(1))
    await clock.advance(TIMEOUT_S * FULL_PART)
    assert queue.free_slots == MESSAGES_MAX - 1
    await clock.advance(0.001)
    assert queue.free_slots == 0
    pool.free = 1
    queue.send()
    assert queue.free_slots == MESSAGES_MAX


async def test_only_messages_that_waited_too_long_expire() -> None:
    clock, pool = FakeClock(), PoolWithSlots()
    queue = queue_on(pool, clock)
    queue.add(numbered(1, 2, 3))
    await clock.advance(0.3)
    queue.add(numbered(4, 5))
    pool.free = 1
    queue.send()
    await clock.advance(TIMEOUT_S * EXPIRY_PART - 0.3)
    assert queue.take_expired() == []
    await clock.advance(0.001)
    assert queue.take_expired() == [b"2", b"3"]
    assert queue.take_expired() == []
    pool.free = 10
    assert queue.send() == 2
    assert [message_id for (message_id, _), _ in pool.sent] == [b"1", b"4", b"5"]


@pytest.mark.limit("ready_bytes_max")
async def test_the_queue_has_a_limit_in_bytes() -> None:
    pool = PoolWithSlots()
    queue = queue_on(pool, FakeClock())
    queue.add([(b"%d" % n, b"x" * 100_000) for n in range(9)])
    assert queue.free_slots == MESSAGES_MAX - 9
    queue.add([(b"10", b"x" * 100_000)])
    assert queue.free_slots == 0
    pool.free = 1
    queue.send()
    assert queue.free_slots == MESSAGES_MAX - 9
    assert len(queue.take_all()) == 9
    assert queue.free_slots == MESSAGES_MAX


@pytest.mark.limit("ready_messages_max")
async def test_the_queue_has_a_limit_and_can_be_cleared() -> None:
    queue = queue_on(PoolWithSlots(), FakeClock())
    queue.add(numbered(*range(MESSAGES_MAX + 5)))
    assert queue.free_slots == 0
    queue.clear()
    assert queue.free_slots == MESSAGES_MAX
    assert not queue
    assert queue.send() == 0
    queue.add([])
    assert not queue
