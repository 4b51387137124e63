"""The worker pool over real sockets: round robin, windows, listed addresses."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from angarium.dispatch.frames import DispatchedMessage
from angarium.dispatch.message_ids import new_ids
from angarium.dispatch.protocol import (
    Hello,
)
from tests.dispatch.scripted_worker import (
    DEADLINE_S,
    arrived,
    has_free_slots,
    messages_of,
    pool_harness,
    scripted_worker,
    worker,
)
from tests.kit.eventually import eventually


@pytest.mark.parametrize("count", [1, 2, 3, 4])
async def test_messages_are_sent_round_robin_and_in_order(count: int) -> None:
    async with AsyncExitStack() as stack, pool_harness() as ours:
        peers = [
            await stack.enter_async_context(scripted_worker(worker(1_000))) for _ in range(count)
        ]
        await ours.connect(*peers)
        sent: list[DispatchedMessage] = []
        for size in (1, 10, 7, 1, 1, 100):
            batch = messages_of(size)
            assert ours.pool.distribute(batch) == size
            sent += batch
        await arrived(peers, len(sent))
        for turn, each in enumerate(peers):
            assert each.messages == sent[turn::count]


async def test_messages_are_sent_round_robin_one_by_one_too() -> None:
    """A window that is nearly full takes the slower path; the order is the same."""
    async with (
        scripted_worker(worker(6)) as a,
        scripted_worker(worker(6)) as b,
        pool_harness() as ours,
    ):
        await ours.connect(a, b)
        sent = messages_of(5)
        assert ours.pool.distribute(sent[:2]) == 2
        assert ours.pool.distribute(sent[2:], [None] * 3) == 3
        await arrived([a, b], 5)
        assert a.messages == sent[0::2]
        assert b.messages == sent[1::2]


async def test_no_worker_gets_more_than_its_window() -> None:
    async with (
        scripted_worker(worker(2)) as a,
        scripted_worker(worker(5)) as b,
        pool_harness() as ours,
    ):
        small, large = await ours.connect(a, b)
        assert ours.pool.free_slots == 7
        sent = messages_of(10)
        assert ours.pool.distribute(sent) == 7
        await arrived([a, b], 7)
        assert (len(a.messages), len(b.messages)) == (2, 5)
        assert [each for each in sent[:7] if each in a.messages + b.messages] == sent[:7]
        assert ours.pool.free_slots == 0
        assert ours.pool.distribute(sent[7:]) == 0
        a.acknowledge(a.ids[0])
        await eventually(lambda: small.free_slots == 1, DEADLINE_S)
        assert ours.pool.distribute(sent[7:]) == 1
        await eventually(lambda: len(a.messages) == 3, DEADLINE_S)
        assert a.messages[2] == sent[7]
        assert ours.events.acks == [a.ids[0]]
        assert large.free_slots == 0


async def test_without_workers_nothing_is_sent() -> None:
    async with pool_harness() as ours:
        assert ours.pool.distribute(messages_of(3)) == 0
        assert ours.pool.free_slots == 0


async def test_the_worker_that_held_a_message_last_is_avoided() -> None:
    async with (
        scripted_worker(worker()) as a,
        scripted_worker(worker()) as b,
        scripted_worker(worker()) as c,
        pool_harness() as ours,
    ):
        connections = await ours.connect(a, b, c)
        sent = messages_of(30)
        # Each message was last on the connection that is next in round robin.
        avoid = [connections[i % 3] for i in range(30)]
        assert ours.pool.distribute(sent, avoid) == 30
        await arrived([a, b, c], 30)
        for connection, each in zip(connections, (a, b, c), strict=True):
            had_it = [m for m, last in zip(sent, avoid, strict=True) if last is connection]
            assert not [m for m in each.messages if m in had_it]


async def test_the_only_worker_gets_a_message_even_if_avoided() -> None:
    async with scripted_worker(worker()) as a, pool_harness() as ours:
        (connection,) = await ours.connect(a)
        sent = messages_of(2)
        assert ours.pool.distribute(sent, [connection, connection]) == 2
        await eventually(lambda: a.messages == sent, DEADLINE_S)
        assert ours.pool.connection_with(sent[0][0]) is connection
        assert ours.pool.connection_with(b"nobody's") is None


async def test_a_window_shrinks_with_time_outs_and_grows_with_acknowledgements() -> None:
    async with scripted_worker(worker(8)) as a, pool_harness() as ours:
        (connection,) = await ours.connect(a)
        windows = []
        for _ in range(5):
            sent = messages_of(connection.free_slots)
            ours.pool.distribute(sent)
            connection.expire([message_id for message_id, _ in sent])
            windows.append(connection.free_slots)
        assert windows == [4, 2, 1, 1, 1]
        await arrived([a], 8 + 4 + 2 + 1 + 1)
        for expected in (2, 4, 8, 8):
            a.messages.clear()
            ours.pool.distribute(messages_of(1))
            await arrived([a], 1)
            a.acknowledge(a.ids[0])
            await has_free_slots(connection, expected)


async def test_one_time_out_between_acknowledgements_does_not_shrink_the_window() -> None:
    async with scripted_worker(worker(8)) as a, pool_harness() as ours:
        (connection,) = await ours.connect(a)
        for _ in range(3):
            (late, _), (good, _) = sent = messages_of(2)
            ours.pool.distribute(sent)
            await arrived([a], 2)
            a.messages.clear()
            a.acknowledge(good)
            await eventually(lambda: connection.free_slots == 7, DEADLINE_S)
            connection.expire([late])
            assert connection.free_slots == 8


async def test_an_acknowledgement_of_a_foreign_message_frees_no_slot() -> None:
    async with scripted_worker(worker(3)) as a, pool_harness() as ours:
        (connection,) = await ours.connect(a)
        sent = messages_of(1)
        ours.pool.distribute(sent)
        a.acknowledge(*new_ids(2))
        await eventually(lambda: ours.events.foreign == 2, DEADLINE_S)
        assert connection.free_slots == 2
        assert list(connection.unacknowledged) == [sent[0][0]]


async def test_an_acknowledgement_at_the_ack_port_frees_the_slot() -> None:
    async with (
        scripted_worker(Hello(window=2)) as a,
        scripted_worker(Hello(window=2)) as b,
        pool_harness() as ours,
    ):
        one, two = await ours.connect(a, b)
        ids = new_ids(4)
        assert ours.pool.distribute([(each, b"x") for each in ids]) == 4
        assert (one.free_slots, two.free_slots) == (0, 0)
        ours.pool.settle([ids[0], ids[2], ids[3], *new_ids(1)])
        assert (one.free_slots, two.free_slots) == (2, 1)
        assert list(two.unacknowledged) == [ids[1]]


async def test_an_old_unacknowledged_message_frees_its_slot() -> None:
    async with scripted_worker(Hello(window=2)) as other, pool_harness() as ours:
        (connection,) = await ours.connect(other)
        assert ours.pool.distribute([(each, b"x") for each in new_ids(3)]) == 2
        assert ours.pool.forget_older_than(3_600) == 0
        assert connection.free_slots == 0
        assert ours.pool.forget_older_than(-1) == 2
        assert (connection.free_slots, connection.unacknowledged) == (2, {})


# Listed addresses ---------------------------------------------------------------------------


async def test_a_delisted_worker_gets_no_more_and_finishes_its_messages() -> None:
    async with (
        scripted_worker(worker(10)) as a,
        scripted_worker(worker(10)) as b,
        pool_harness() as ours,
    ):
        leaving, _ = await ours.connect(a, b)
        sent = messages_of(2)
        ours.pool.distribute(sent)
        await arrived([a, b], 2)
        ours.connect_to(b.address)
        assert leaving.free_slots == 0
        assert ours.pool.distribute(messages_of(4)) == 4
        await arrived([b], 5)
        assert len(a.messages) == 1
        a.acknowledge(a.ids[0])
        await eventually(lambda: ours.events.acks == [a.ids[0]], DEADLINE_S)
        ours.connect_to(b.address)
        await eventually(lambda: not a.alive, DEADLINE_S)
        await eventually(lambda: len(ours.pool.connections) == 1, DEADLINE_S)
        assert ours.events.losses == [[]]


async def test_a_worker_that_is_listed_again_gets_messages_again() -> None:
    async with scripted_worker(worker(10)) as a, pool_harness() as ours:
        (connection,) = await ours.connect(a)
        ours.pool.distribute(messages_of(1))
        ours.connect_to()
        assert ours.pool.free_slots == 0
        ours.connect_to(a.address)
        assert ours.pool.free_slots == 9
        assert ours.connection(a) is connection


async def test_an_address_listed_twice_is_dialled_once() -> None:
    async with scripted_worker(worker()) as a, pool_harness() as ours:
        ours.connect_to(a.address, a.address)
        await ours.wait_open(a)
        ours.connect_to(a.address)
        assert len(a.connections) == 1


@pytest.mark.parametrize(
    "address",
    ["", "nowhere", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:99999", "127.0.0.1:-1",
     "a..b:80", "nul\0:80", f"{'x' * 300}:80", "[::1", ":::", "127.0.0.1:0"],
)  # fmt: skip
async def test_an_invalid_address_does_not_affect_other_workers(address: str) -> None:
    async with scripted_worker(worker()) as a, pool_harness() as ours:
        ours.connect_to(address, a.address)
        await ours.wait_open(a)
        await asyncio.sleep(0)
        ours.connect_to(address, a.address)
        assert ours.pool.distribute(messages_of(1)) == 1
        await arrived([a], 1)
