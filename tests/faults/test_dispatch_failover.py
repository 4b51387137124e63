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


async def new_leaders_ms(ours: DispatchProcesses, victim: RoleProcess) -> list[int]:
    """Kill a dispatcher; milliseconds until each partition that it led has another leader."""
    partitions = range(ours.store.partitions)
    led = {each for each in partitions if await ours.leader_of(each) is victim}
    at_ms, found = await ours.now_ms(), dict[int, int]()
    victim.kill()

    async def all_led_again() -> bool:
        for each in led - found.keys():
            if await ours.leader_of(each) is not None:
                found[each] = await ours.now_ms() - at_ms
        return len(found) == len(led)

    await eventually(all_led_again, deadline_s=60)
    return [*found.values()]


async def new_epochs_covered(ours: DispatchProcesses) -> None:
    """A dispatcher that has just started lets one go first that heard more; so wait until it has
    heard all that counts."""
    partitions = range(ours.store.partitions)
    before = [await ours.store.covered(each) for each in partitions]

    async def covered() -> bool:
        found = [await ours.store.covered(each) for each in partitions]
        return all(new > old + 1 for new, old in zip(found, before, strict=True))

    await eventually(covered, deadline_s=60)


@pytest.mark.parametrize("partitions", [1, 16])
async def test_f10_all_partitions_of_a_dead_leader_are_led_and_served_again(
    redis_url: str, partitions: int
) -> None:
    """Compare the figures of one partition and of sixteen."""
    kills, waits_ms, last_ms, count = rounds(2, 10), list[int](), list[int](), 0
    async with dispatch_processes(redis_url, partitions=partitions) as ours:
        await ours.add_dispatcher()
        await ours.add_dispatcher()
        await ours.add_worker()
        for _ in range(kills):
            victim = await ours.wait_for_leaders()
            found = await new_leaders_ms(ours, victim)
            waits_ms += found
            last_ms.append(max(found))
            # Messages of the intake are spread over the partitions by their ids.
            for n in range(count, count + 4 * partitions):
                await ours.store.enqueue(b'{"n":"%d"}' % n)
            count += 4 * partitions
            await ours.wait_settled(count)
            await ours.add_dispatcher()
            await new_epochs_covered(ours)
        print(
            f"\n{partitions} partitions, {kills} leaders killed, {len(waits_ms)} partitions led "
            f"again after {sum(waits_ms) / len(waits_ms):.0f} ms on average, the last one of a "
            f"leader after {sum(last_ms) / kills:.0f} ms ({min(last_ms)} to {max(last_ms)})"
        )
        assert (await ours.results()).counts == Counter({str(n): 1 for n in range(count)})
