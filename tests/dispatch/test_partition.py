"""Leadership of one partition: what is accepted, covered and handed on when it changes hands.

The test is the channel: it tells the ring what was published, in order, as a dispatcher would.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from angarium.dispatch.counts import DispatcherCounts
from angarium.dispatch.epochs import Ring, digest
from angarium.dispatch.identity import new_ids
from angarium.dispatch.links import LinkOwner, Links
from angarium.dispatch.partition import Partition
from angarium.dispatch.store import DispatchStore
from angarium.runtime import keyspace as keys
from angarium.runtime.clock import SystemClock
from angarium.runtime.errors import RedisUnavailable
from angarium.runtime.lease import Lease
from angarium.runtime.runtime import Runtime
from tests.dispatch.peer import terms
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime

DEADLINE_S = 30.0
# Long against any delay of the machine: what has to end in these tests is ended by them.
LOCK_MS = 60_000


class Alone:
    """Wants everything, and to share nothing."""

    willing = True
    alone = True
    below_share = True
    over_share = False


class Leader:
    """A partition, its ring, and the channel as far as the test has told of it."""

    def __init__(self, runtime: Runtime, store: DispatchStore) -> None:
        self.store = store
        self.runtime = runtime
        self.counts = DispatcherCounts()
        self.ring = Ring(1_000, 100_000)
        links = Links(terms(), LinkOwner(), self.counts, runtime.clock)
        self.partition = Partition(0, runtime, store, self.ring, links, self.counts)

    def mark(self, epoch: int) -> None:
        for payload in self.ring.mark(epoch):
            self._offer(epoch - 1, payload)

    def hear(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.ring.add([payload])
            if self.ring.current is not None:
                self._offer(self.ring.current, payload)

    def _offer(self, epoch: int, payload: bytes) -> None:
        if self.partition.listening:
            self.partition.offer(epoch, [(payload, digest(payload))])

    async def asks_for_mark(self, at_least: int) -> None:
        """Wait until it wants to lead and has published a mark, which it does not hear yet."""

        async def asked() -> bool:
            self.partition.wake()
            return await self.newest_mark() >= at_least

        await eventually(asked, DEADLINE_S)

    async def leads(self) -> None:
        """Let it hear the mark that it asks for, and wait until it leads."""

        async def heard_and_leads() -> bool:
            newest = await self.newest_mark()
            if self.ring.current is None or newest > self.ring.current:
                self.mark(newest)
            self.partition.wake()
            return self.partition.leading

        await eventually(heard_and_leads, DEADLINE_S)

    async def newest_mark(self) -> int:
        name = self.runtime.keyspace.name(keys.MESSAGES_EPOCH, 0)
        return int(await self.runtime.redis.call("GET", name, key=name) or 0)

    async def idle(self) -> None:
        await eventually(lambda: self.partition.queued == 0, DEADLINE_S)

    async def payloads(self) -> Counter[bytes]:
        name = self.runtime.keyspace.name(keys.MESSAGES_PAYLOADS, 0)
        return Counter(await self.runtime.redis.call("HVALS", name, key=name))

    async def free_lock(self) -> None:
        """Its time is over in Redis: whoever held it is dead or late."""
        lock = self.store.lease_keys(0).lock
        await self.runtime.redis.call("DEL", lock, key=lock)


@asynccontextmanager
async def leader(redis_url: str, **overrides: Any) -> AsyncIterator[Leader]:
    dispatch = {"lock_ms": LOCK_MS, **overrides.pop("dispatch", {})}
    async with sample_runtime(
        redis_url, clock=SystemClock(), dispatch=dispatch, **overrides
    ) as runtime:
        found = Leader(runtime, DispatchStore(runtime))
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(again(lambda: found.partition.lead(Alone()))),
                group.create_task(found.partition.pump()),
            ]
            try:
                yield found
            finally:
                for task in tasks:
                    task.cancel()


async def again(run: Callable[[], Awaitable[None]]) -> None:
    """As a service would: a fault is not the end."""
    while True:
        try:
            await run()
        except RedisUnavailable:
            await asyncio.sleep(0.01)


def hurt(store: Any, **methods: Any) -> None:
    for name, method in methods.items():
        setattr(store, name, method)


async def accept_as_another(ours: Leader, epoch: int, *payloads: bytes) -> None:
    """A leader before us, who is gone as soon as it has accepted these."""
    lease = Lease(ours.runtime, ours.store.lease_keys(0), LOCK_MS)
    assert await lease.acquire()
    messages = list(zip(new_ids(len(payloads)), payloads, strict=True))
    digests = b"".join(map(digest, payloads))
    assert await ours.store.accept(0, lease.term, epoch, messages, digests, 0) == len(payloads)
    await lease.release()


async def test_what_the_leader_before_did_not_accept_is_accepted_at_takeover(
    redis_url: str,
) -> None:
    async with leader(redis_url) as ours:
        await ours.store.mark_epoch()
        await accept_as_another(ours, 1, b"a", b"b", b"a")
        ours.mark(1)
        ours.hear(b"a", b"b", b"a", b"a", b"c")
        await ours.leads()
        ours.hear(b"d")
        await ours.idle()
        assert await ours.payloads() == Counter([b"a"] * 3 + [b"b", b"c", b"d"])
        assert ours.counts.gap_accepted == 2


async def test_what_reaches_us_late_is_not_accepted_twice(redis_url: str) -> None:
    """The leader before us had heard more than we have when its lock is free."""
    async with leader(redis_url) as ours:
        await ours.store.mark_epoch()
        await ours.store.mark_epoch()
        await accept_as_another(ours, 1, b"a", b"b")
        await accept_as_another(ours, 2, b"c")
        ours.mark(1)
        ours.hear(b"a")
        await ours.asks_for_mark(3)
        assert not ours.partition.leading, "it has not heard its own mark yet"
        ours.hear(b"b")
        ours.mark(2)
        ours.hear(b"c", b"new")
        await ours.leads()
        ours.hear(b"newer")
        await ours.idle()
        assert await ours.payloads() == Counter([b"a", b"b", b"c", b"new", b"newer"])


async def test_a_connection_lost_at_takeover_lets_others_try(redis_url: str) -> None:
    async with leader(redis_url) as ours:
        ours.mark(await ours.store.mark_epoch())
        await ours.asks_for_mark(2)
        ours.ring.forget_all()

        async def is_free() -> bool:
            return not await ours.store.is_led(0)

        await eventually(is_free, DEADLINE_S)
        assert not ours.partition.leading
        # And it comes back when it hears again.
        await ours.leads()


async def test_a_takeover_that_fails_half_way_is_tried_again(redis_url: str) -> None:
    """The lease is held already then; keeping it must not be taken for leading."""
    async with leader(redis_url) as ours:
        reads = 0
        digests = ours.store.accepted_digests

        async def fails_once(*args: Any) -> Any:
            nonlocal reads
            reads += 1
            if reads == 1:
                raise RedisUnavailable("cut in the middle of a takeover")
            return await digests(*args)

        hurt(ours.store, accepted_digests=fails_once)
        ours.mark(await ours.store.mark_epoch())
        ours.hear(b"a")
        await ours.leads()
        await ours.idle()
        assert reads >= 2
        assert await ours.payloads() == Counter([b"a"])


async def test_an_answer_to_an_earlier_leadership_does_not_end_this_one(redis_url: str) -> None:
    async with leader(redis_url) as ours:
        accept = ours.store.accept
        go_on, begun = asyncio.Event(), asyncio.Event()

        async def slow(*args: Any) -> Any:
            if not go_on.is_set():
                begun.set()
                await go_on.wait()
            return await accept(*args)

        ours.mark(await ours.store.mark_epoch())
        await ours.leads()
        hurt(ours.store, accept=slow)
        ours.hear(b"a")
        await begun.wait()
        # The lock is lost while a batch is on its way, and regained with a newer term.
        await ours.free_lock()
        await eventually(lambda: wake_until(ours, leading=False), DEADLINE_S)
        await ours.leads()
        go_on.set()
        ours.hear(b"b")
        await ours.idle()
        assert ours.partition.leading
        assert await ours.payloads() == Counter([b"a", b"b"])


def wake_until(ours: Leader, *, leading: bool) -> bool:
    ours.partition.wake()
    return ours.partition.leading is leading


async def test_what_is_heard_while_handing_over_is_left_to_the_next(redis_url: str) -> None:
    """It is not accepted here, so the epochs it stands in must not be called covered."""
    async with leader(redis_url) as ours:
        ours.mark(await ours.store.mark_epoch())
        await ours.leads()
        accept = ours.store.accept
        go_on = asyncio.Event()

        async def slow(*args: Any) -> Any:
            await go_on.wait()
            return await accept(*args)

        hurt(ours.store, accept=slow)
        ours.hear(b"a")
        closing = ours.ring.current
        assert closing is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(ours.partition.hand_over())
            await eventually(lambda: not ours.partition.listening, DEADLINE_S)
            ours.hear(b"b")
            ours.mark(await ours.store.mark_epoch())
            ours.hear(b"c")
            await ours.partition.cover_once()
            go_on.set()
        assert await ours.payloads() == Counter([b"a"])
        assert await ours.store.covered(0) <= closing
        # The next leader, as good as any other: it accepts what we left.
        await ours.leads()
        await ours.idle()
        assert await ours.payloads() == Counter([b"a", b"b", b"c"])


async def test_who_missed_some_covers_nothing_before_it_hands_over(redis_url: str) -> None:
    async with leader(redis_url) as ours:
        ours.mark(await ours.store.mark_epoch())
        await ours.leads()
        ours.hear(b"a")
        await ours.idle()
        gap = ours.ring.current
        assert gap is not None
        after = await ours.store.mark_epoch()
        # The connection was away, and others heard what we did not.
        ours.ring.forget_all()
        ours.partition.resign(3_600)
        ours.mark(after)
        await ours.partition.cover_once()
        await eventually(lambda: not ours.partition.leading, DEADLINE_S)
        assert await ours.store.covered(0) <= gap


async def test_everything_accepted_is_covered_and_no_more(redis_url: str) -> None:
    async with leader(redis_url) as ours:
        ours.mark(await ours.store.mark_epoch())
        await ours.leads()
        first = ours.ring.current
        assert first is not None
        ours.hear(b"a")
        await ours.idle()
        await ours.partition.cover_once()
        assert await ours.store.covered(0) == first
        ours.mark(first + 1)
        await ours.partition.cover_once()
        assert await ours.store.covered(0) == first + 1
        assert (await ours.store.accepted_digests(0, [first]))[first] == Counter()
        # An epoch with something unaccepted in it holds the mark, however many follow.
        hurt(ours.store, accept=never)
        ours.hear(b"b")
        ours.mark(first + 2)
        ours.mark(first + 3)
        await ours.partition.cover_once()
        assert await ours.store.covered(0) == first + 1


async def never(*_: Any) -> Any:
    await asyncio.get_running_loop().create_future()


async def test_a_batch_whose_reply_was_lost_is_sent_again_and_counted_once(redis_url: str) -> None:
    async with leader(redis_url) as ours:
        accept = ours.store.accept
        calls = 0

        async def loses_replies(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            accepted = await accept(*args)
            if calls <= 3:
                raise RedisUnavailable("done, but nobody heard of it")
            return accepted

        hurt(ours.store, accept=loses_replies)
        ours.mark(await ours.store.mark_epoch())
        await ours.leads()
        ours.hear(b"a", b"a", b"b")
        await ours.idle()
        assert await ours.payloads() == Counter([b"a", b"a", b"b"])
        assert ours.counts.accepted == 3
