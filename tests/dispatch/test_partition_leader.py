"""Leadership of one partition: accepting, covering and handing over.

The test plays the channel: it adds published messages to the ring in order, as a dispatcher would.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from angarium.dispatch import keys
from angarium.dispatch.epochs import EpochRing, digest
from angarium.dispatch.message_ids import new_ids
from angarium.dispatch.metrics import DispatcherMetrics
from angarium.dispatch.partition_leader import PartitionLeader
from angarium.dispatch.store import DispatchStore
from angarium.dispatch.worker_connection import WorkerConnectionEvents
from angarium.dispatch.worker_pool import WorkerPool
from angarium.runtime.clock import SystemClock
from angarium.runtime.errors import RedisUnavailable
from angarium.runtime.lease import Lease
from angarium.runtime.runtime import Runtime
from tests.dispatch.scripted_worker import connection_options
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime

DEADLINE_S = 30.0
# Longer than any delay of the machine: the lock ends only when a test deletes it.
LOCK_MS = 60_000


class OnlyDispatcher:
    """May lead all partitions and shares none."""

    may_lead = True
    is_only_dispatcher = True
    below_share = True
    over_share = False

    def suspect(self, dispatcher: str) -> None: ...


class LeaderHarness:
    """A partition leader and its ring. The test plays the channel."""

    def __init__(self, runtime: Runtime, store: DispatchStore) -> None:
        self.store = store
        self.runtime = runtime
        self.metrics = DispatcherMetrics()
        self.ring = EpochRing(1_000, 100_000)
        connections = WorkerPool(
            connection_options(), WorkerConnectionEvents(), self.metrics, runtime.clock
        )
        self.partition = PartitionLeader(0, runtime, store, self.ring, connections, self.metrics)

    def begin_epoch(self, epoch: int) -> None:
        for payload in self.ring.begin_epoch(epoch):
            self._offer(epoch - 1, payload)

    def receive(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.ring.add([payload])
            if self.ring.current is not None:
                self._offer(self.ring.current, payload)

    def _offer(self, epoch: int, payload: bytes) -> None:
        if self.partition.accepting:
            self.partition.offer(epoch, [(payload, digest(payload))])

    async def wait_for_marker(self, at_least: int) -> None:
        """Wait until the leader has published a marker, which it has not received yet."""

        async def asked() -> bool:
            self.partition.wake()
            return await self.newest_marker() >= at_least

        await eventually(asked, DEADLINE_S)

    async def wait_until_leading(self) -> None:
        """Deliver the marker that the leader waits for, and wait until it leads."""

        async def received_and_leads() -> bool:
            newest = await self.newest_marker()
            if self.ring.current is None or newest > self.ring.current:
                self.begin_epoch(newest)
            self.partition.wake()
            return self.partition.leading

        await eventually(received_and_leads, DEADLINE_S)

    async def newest_marker(self) -> int:
        name = self.runtime.keyspace.name(keys.MESSAGES_EPOCH, 0)
        return int(await self.runtime.redis.call("GET", name, key=name) or 0)

    async def wait_idle(self) -> None:
        await eventually(lambda: self.partition.queued == 0, DEADLINE_S)

    async def payloads(self) -> Counter[bytes]:
        name = self.runtime.keyspace.name(keys.MESSAGES_PAYLOADS, 0)
        return Counter(await self.runtime.redis.call("HVALS", name, key=name))

    async def free_lock(self) -> None:
        """Delete the lock, as its expiry does when the holder is dead or late."""
        lock = self.store.lease_keys(0).lock
        await self.runtime.redis.call("DEL", lock, key=lock)


@asynccontextmanager
async def leader_harness(redis_url: str, **overrides: Any) -> AsyncIterator[LeaderHarness]:
    dispatch = {"lock_ms": LOCK_MS, **overrides.pop("dispatch", {})}
    async with sample_runtime(
        redis_url, clock=SystemClock(), dispatch=dispatch, **overrides
    ) as runtime:
        found = LeaderHarness(runtime, DispatchStore(runtime))
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(restart_on_error(lambda: found.partition.lead(OnlyDispatcher()))),
                group.create_task(found.partition.run_accepts()),
            ]
            try:
                yield found
            finally:
                for task in tasks:
                    task.cancel()


async def restart_on_error(run: Callable[[], Awaitable[None]]) -> None:
    """Restart after an error, as a service does."""
    while True:
        try:
            await run()
        except RedisUnavailable:
            await asyncio.sleep(0.01)


def replace_methods(store: Any, **methods: Any) -> None:
    for name, method in methods.items():
        setattr(store, name, method)


async def accept_as_earlier_leader(leader: LeaderHarness, epoch: int, *payloads: bytes) -> None:
    """Accept messages as an earlier leader that then releases the lease."""
    lease = Lease(leader.runtime, leader.store.lease_keys(0), LOCK_MS)
    assert await lease.acquire()
    messages = list(zip(new_ids(len(payloads)), payloads, strict=True))
    digests = b"".join(map(digest, payloads))
    accepted = await leader.store.accept(0, lease.term, epoch, messages, digests, 0)
    assert accepted == (len(payloads), 0)
    await lease.release()


async def test_a_takeover_accepts_what_the_earlier_leader_did_not(
    redis_url: str,
) -> None:
    async with leader_harness(redis_url) as leader:
        await leader.store.publish_epoch_marker()
        await accept_as_earlier_leader(leader, 1, b"a", b"b", b"a")
        leader.begin_epoch(1)
        leader.receive(b"a", b"b", b"a", b"a", b"c")
        await leader.wait_until_leading()
        leader.receive(b"d")
        await leader.wait_idle()
        assert await leader.payloads() == Counter([b"a"] * 3 + [b"b", b"c", b"d"])
        assert leader.metrics.gap_accepted == 2


async def test_a_message_that_arrives_late_is_not_accepted_twice(redis_url: str) -> None:
    """The earlier leader received more than this one when the lock becomes free."""
    async with leader_harness(redis_url) as leader:
        await leader.store.publish_epoch_marker()
        await leader.store.publish_epoch_marker()
        await accept_as_earlier_leader(leader, 1, b"a", b"b")
        await accept_as_earlier_leader(leader, 2, b"c")
        leader.begin_epoch(1)
        leader.receive(b"a")
        await leader.wait_for_marker(3)
        assert not leader.partition.leading, "it has not received its own marker yet"
        leader.receive(b"b")
        leader.begin_epoch(2)
        leader.receive(b"c", b"new")
        await leader.wait_until_leading()
        leader.receive(b"newer")
        await leader.wait_idle()
        assert await leader.payloads() == Counter([b"a", b"b", b"c", b"new", b"newer"])


async def test_a_gap_during_a_takeover_releases_the_lease(redis_url: str) -> None:
    async with leader_harness(redis_url) as leader:
        leader.begin_epoch(await leader.store.publish_epoch_marker())
        await leader.wait_for_marker(2)
        leader.ring.clear()

        async def is_free() -> bool:
            return (await leader.store.leader(0))[0] is None

        await eventually(is_free, DEADLINE_S)
        assert not leader.partition.leading
        # It leads again after the next marker.
        await leader.wait_until_leading()


async def test_a_failed_takeover_is_repeated(redis_url: str) -> None:
    """The leader then holds the lease and must still take over."""
    async with leader_harness(redis_url) as leader:
        reads = 0
        digests = leader.store.accepted_digests

        async def fails_once(*args: Any) -> Any:
            nonlocal reads
            reads += 1
            if reads == 1:
                raise RedisUnavailable("connection cut during a takeover")
            return await digests(*args)

        replace_methods(leader.store, accepted_digests=fails_once)
        leader.begin_epoch(await leader.store.publish_epoch_marker())
        leader.receive(b"a")
        await leader.wait_until_leading()
        await leader.wait_idle()
        assert reads >= 2
        assert await leader.payloads() == Counter([b"a"])


async def test_a_late_reply_to_an_earlier_leadership_does_not_end_this_one(redis_url: str) -> None:
    async with leader_harness(redis_url) as leader:
        accept = leader.store.accept
        go_on, begun = asyncio.Event(), asyncio.Event()

        async def slow(*args: Any) -> Any:
            if not go_on.is_set():
                begun.set()
                await go_on.wait()
            return await accept(*args)

        leader.begin_epoch(await leader.store.publish_epoch_marker())
        await leader.wait_until_leading()
        replace_methods(leader.store, accept=slow)
        leader.receive(b"a")
        await begun.wait()
        # The lock is lost while a batch is in flight, and acquired again with a newer term.
        await leader.free_lock()
        await eventually(lambda: wake_until(leader, leading=False), DEADLINE_S)
        await leader.wait_until_leading()
        go_on.set()
        leader.receive(b"b")
        await leader.wait_idle()
        assert leader.partition.leading
        assert await leader.payloads() == Counter([b"a", b"b"])


def wake_until(leader: LeaderHarness, *, leading: bool) -> bool:
    leader.partition.wake()
    return leader.partition.leading is leading


async def test_messages_received_during_a_handover_belong_to_the_next_leader(
    redis_url: str,
) -> None:
    """The old leader does not accept it, so its epochs must not be covered."""
    async with leader_harness(redis_url) as leader:
        leader.begin_epoch(await leader.store.publish_epoch_marker())
        await leader.wait_until_leading()
        accept = leader.store.accept
        go_on = asyncio.Event()

        async def slow(*args: Any) -> Any:
            await go_on.wait()
            return await accept(*args)

        replace_methods(leader.store, accept=slow)
        leader.receive(b"a")
        closing = leader.ring.current
        assert closing is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(leader.partition.hand_over())
            await eventually(lambda: not leader.partition.accepting, DEADLINE_S)
            leader.receive(b"b")
            leader.begin_epoch(await leader.store.publish_epoch_marker())
            leader.receive(b"c")
            await leader.partition.cover_once()
            go_on.set()
        assert await leader.payloads() == Counter([b"a"])
        assert await leader.store.covered(0) <= closing
        # The next leader accepts the messages that the old one left.
        await leader.wait_until_leading()
        await leader.wait_idle()
        assert await leader.payloads() == Counter([b"a", b"b", b"c"])


async def test_a_leader_with_a_gap_covers_nothing_before_its_handover(redis_url: str) -> None:
    async with leader_harness(redis_url) as leader:
        leader.begin_epoch(await leader.store.publish_epoch_marker())
        await leader.wait_until_leading()
        leader.receive(b"a")
        await leader.wait_idle()
        gap = leader.ring.current
        assert gap is not None
        after = await leader.store.publish_epoch_marker()
        # The subscription had a gap; other dispatchers received the missed messages.
        leader.ring.clear()
        leader.partition.resign(3_600)
        leader.begin_epoch(after)
        await leader.partition.cover_once()
        await eventually(lambda: not leader.partition.leading, DEADLINE_S)
        assert await leader.store.covered(0) <= gap


async def test_exactly_the_accepted_epochs_are_covered(redis_url: str) -> None:
    async with leader_harness(redis_url) as leader:
        leader.begin_epoch(await leader.store.publish_epoch_marker())
        await leader.wait_until_leading()
        first = leader.ring.current
        assert first is not None
        leader.receive(b"a")
        await leader.wait_idle()
        await leader.partition.cover_once()
        assert await leader.store.covered(0) == first
        leader.begin_epoch(first + 1)
        await leader.partition.cover_once()
        assert await leader.store.covered(0) == first + 1
        assert (await leader.store.accepted_digests(0, [first]))[first] == Counter()
        # An epoch with an unaccepted message stops covering, however many epochs follow.
        replace_methods(leader.store, accept=never)
        leader.receive(b"b")
        leader.begin_epoch(first + 2)
        leader.begin_epoch(first + 3)
        await leader.partition.cover_once()
        assert await leader.store.covered(0) == first + 1


async def never(*_: Any) -> Any:
    await asyncio.get_running_loop().create_future()


async def test_a_batch_with_a_lost_reply_is_repeated_and_counted_once(redis_url: str) -> None:
    async with leader_harness(redis_url) as leader:
        accept = leader.store.accept
        calls = 0

        async def loses_replies(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            accepted = await accept(*args)
            if calls <= 3:
                raise RedisUnavailable("executed, but the reply was lost")
            return accepted

        replace_methods(leader.store, accept=loses_replies)
        leader.begin_epoch(await leader.store.publish_epoch_marker())
        await leader.wait_until_leading()
        leader.receive(b"a", b"a", b"b")
        await leader.wait_idle()
        assert await leader.payloads() == Counter([b"a", b"a", b"b"])
        assert leader.metrics.accepted == 3


async def test_f6_a_hand_over_that_is_cut_short_heals_by_itself(redis_url: str) -> None:
    async with leader_harness(redis_url) as leader:
        leader.begin_epoch(await leader.store.publish_epoch_marker())
        await leader.wait_until_leading()
        cover = leader.store.cover_epochs

        async def breaks(*args: Any) -> Any:
            leader.receive(b"b")
            raise RedisUnavailable("connection cut during a hand-over")

        leader.receive(b"a")
        await leader.wait_idle()
        leader.begin_epoch(await leader.store.publish_epoch_marker())
        replace_methods(leader.store, cover_epochs=breaks)
        with pytest.raises(RedisUnavailable):
            await leader.partition.hand_over()
        assert leader.partition.accepting, "it leads on"
        leader.receive(b"c")
        replace_methods(leader.store, cover_epochs=cover)

        async def all_accepted() -> bool:
            return await leader.payloads() == Counter([b"a", b"b", b"c"])

        await eventually(all_accepted, DEADLINE_S)
        await leader.partition.hand_over()
        assert not leader.partition.leading


@pytest.mark.limit("accept_messages_max", "accept_bytes_max")
@pytest.mark.parametrize("limit", [{"accept_messages_max": 100}, {"accept_bytes_max": 300}])
async def test_f4_a_leader_keeps_a_limited_number_of_messages_while_redis_refuses(
    redis_url: str, limit: dict[str, int]
) -> None:
    """What does not fit into its queue is accepted from the ring once Redis accepts again."""
    limits = {**limit, "batch_items_max": 10}
    async with leader_harness(redis_url, limits=limits) as leader:
        leader.begin_epoch(await leader.store.publish_epoch_marker())
        await leader.wait_until_leading()
        accept = leader.store.accept
        refuses = True

        async def refused(*args: Any) -> Any:
            if refuses:
                raise RedisUnavailable("OOM command not allowed")
            return await accept(*args)

        replace_methods(leader.store, accept=refused)
        first = leader.ring.current
        assert first is not None
        leader.receive(*[b"%03d" % n for n in range(300)])
        leader.begin_epoch(first + 1)
        leader.receive(*[b"%03d" % n for n in range(300, 600)])
        assert leader.partition.queued == 100
        assert leader.metrics.overflowed == 500
        await leader.partition.cover_once()
        assert await leader.store.covered(0) <= first, "the next leader would accept them"
        refuses = False

        async def all_accepted() -> bool:
            return await leader.payloads() == Counter(b"%03d" % n for n in range(600))

        await eventually(all_accepted, DEADLINE_S)
        leader.begin_epoch(first + 2)
        await leader.wait_idle()
        await leader.partition.cover_once()
        assert await leader.store.covered(0) == first + 2
        leader.receive(b"new")
        await leader.wait_idle()
        assert (await leader.payloads()).total() == 601
