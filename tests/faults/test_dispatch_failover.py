"""Leaders and workers killed and paused under load: nothing lost, nothing twice in the stream."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from tests.dispatch.processes import DispatchProcesses, dispatch_processes, publish_steadily
from tests.faults.profile import rounds
from tests.kit.cluster import ClusterProcess
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

# Every tenth message has the same payload: equal payloads are separate messages.
ALIKE = b'{"n":"alike"}'


def payloads_of(count: int) -> list[bytes]:
    return [ALIKE if n % 10 == 0 else b'{"n":"%d"}' % n for n in range(count)]


def expected_of(payloads: list[bytes]) -> Counter[str]:
    return Counter("alike" if each == ALIKE else each[6:-2].decode() for each in payloads)


async def next_leader(
    processes: DispatchProcesses, old: RoleProcess, partition: int = 0
) -> RoleProcess:
    found: list[RoleProcess] = []

    async def another_leads() -> bool:
        leader = await processes.leader_of(partition)
        if leader is not None and leader is not old:
            found.append(leader)
        return bool(found)

    await eventually(another_leads, deadline_s=60)
    return found[-1]


async def hurt(
    processes: DispatchProcesses,
    leaders: int,
    workers: int,
    pauses: int,
    log: list[tuple[str, int]],
) -> None:
    """Inject one fault after another under load; wait for recovery before the next."""
    seeded = random.Random(7)
    kinds = ["leader"] * leaders + ["worker"] * workers + ["pause"] * pauses
    seeded.shuffle(kinds)
    for kind in kinds:
        await asyncio.sleep(0.3)
        leader = await processes.wait_for_leaders()
        log.append((kind, await processes.now_ms()))
        if kind == "leader":
            leader.kill()
            await processes.add_dispatcher()
            await next_leader(processes, leader)
        elif kind == "worker":
            victim = seeded.choice([each for each in processes.workers if each.alive])
            victim.kill()
            await processes.add_worker()
        else:
            leader.pause()
            await next_leader(processes, leader)
            leader.resume()


async def check_run(redis_url: str, dispatchers: int, lock_ms: int) -> None:
    count = rounds(12_000, 200_000)
    payloads = payloads_of(count)
    log: list[tuple[str, int]] = []
    async with dispatch_processes(redis_url, dispatch={"lock_ms": lock_ms}) as ours:
        for _ in range(dispatchers):
            await ours.add_dispatcher()
        for _ in range(3):
            await ours.add_worker()
        await ours.wait_for_leaders()
        rate = rounds(1_500, 4_000)
        async with asyncio.TaskGroup() as group:
            group.create_task(publish_steadily(ours, payloads, rate))
            group.create_task(hurt(ours, rounds(2, 3), rounds(2, 5), 1, log))
        await ours.wait_settled(count)
        arrived = await ours.results()
        dead = sum([(await ours.store.status(p)).dead for p in range(ours.store.partitions)])
        lost, doubled = (
            expected_of(payloads) - arrived.counts,
            arrived.counts - expected_of(payloads),
        )
        stalls = [f"{kind} {arrived.gap_after_ms(at_ms, 2_000)} ms" for kind, at_ms in log]
        print(
            f"{count} published: lost {lost.total()}, doubled {doubled.total()}, dead {dead}, "
            f"lock {lock_ms} ms, longest gap in the 2 s after each fault: {', '.join(stalls)}; "
            f"in all {arrived.longest_gap_ms()} ms"
        )
        assert lost == Counter()
        assert doubled == Counter()
        assert dead == 0
        assert len(set(arrived.message_ids)) == count
        assert len(log) == rounds(5, 9)


async def test_nothing_is_lost_or_doubled_when_leaders_and_workers_die(redis_url: str) -> None:
    await check_run(redis_url, dispatchers=2, lock_ms=1_000)


async def test_nothing_is_lost_or_doubled_on_a_cluster(cluster: ClusterProcess) -> None:
    await check_run(cluster.url, dispatchers=3, lock_ms=1_000)
