"""When leased messages are due again: distributions over many deaths of workers, and stalls of
Redis or of the leader, in which no live worker may lose what it holds.

A worker's death is a `kill -9`, its hanging a SIGSTOP. The time of the redelivery is that of the
journal. The lease begins at the last renewal, so most messages are due before a lease has passed.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections import Counter
from pathlib import Path

import pytest

from angarium.dispatch import keys
from angarium.runtime.journal import Journal, decode_entry
from tests.dispatch.processes import DispatchProcesses, dispatch_processes
from tests.faults.profile import LONG, rounds
from tests.faults.test_dispatch_slow import SLOW, Runs, report_of
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1_800 if LONG else 300)]
LEASE_MS = 2_000


class Redeliveries:
    """Message id → when it was sent again, from the journal."""

    def __init__(self, ours: DispatchProcesses) -> None:
        self._journal = Journal(ours.runtime)
        self._position = "0-0"
        self.at_ms: dict[str, list[int]] = {}

    async def read(self) -> None:
        while entries := await self._journal.read(0, self._position):
            self._position = entries[-1][0].decode()
            for entry_id, fields in entries:
                for each in decode_entry(entry_id, fields).events:
                    if each.event == "redelivered":
                        at_ms = int(entry_id.partition(b"-")[0])
                        self.at_ms.setdefault(each.subject, []).append(at_ms)

    async def wait_after(self, at_ms: int, ids: set[str]) -> list[int]:
        """Milliseconds from `at_ms` until each of the messages was sent again."""

        def found() -> list[int]:
            times = [self.at_ms.get(each, [0])[-1] - at_ms for each in ids]
            return [each for each in times if each > 0]

        async def all_found() -> bool:
            await self.read()
            return len(found()) == len(ids)

        await eventually(all_found, deadline_s=60)
        return found()


async def held_by(ours: DispatchProcesses, consumer: str) -> set[str]:
    """What the worker holds, or any worker, as far as it has renewed it."""
    name = ours.runtime.keyspace.name(keys.MESSAGES_ATTEMPTS, 0)
    flat = await ours.runtime.redis.call("HGETALL", name, key=name)
    records = zip(flat[::2], flat[1::2], strict=True)
    found = {key.decode(): value.partition(b"\n")[0].partition(b"@")[2] for key, value in records}
    return {key for key, holder in found.items() if holder and holder.startswith(consumer.encode())}


def spread(times_ms: list[int]) -> str:
    ordered = sorted(times_ms)
    quarters = statistics.quantiles(ordered, n=4)
    return (
        f"{ordered[0]} ms at least, quartiles {', '.join(f'{each:.0f}' for each in quarters)}, "
        f"{ordered[-1]} ms at most"
    )


async def connected(ours: DispatchProcesses, workers: int) -> None:
    leader = await ours.wait_for_leaders()

    async def all_connected() -> bool:
        return (await report_of(ours, leader.pid)).figures["workers"] == workers

    await eventually(all_connected, deadline_s=60)


@pytest.mark.parametrize("fault", ["kill", "pause"])
async def test_what_many_dead_or_hanging_workers_had_is_sent_again_once(
    redis_url: str, tmp_path: Path, fault: str
) -> None:
    """Workers die at any point between two renewals, five at a time. One worker survives. One at a
    time hangs: messages could go to another hanging one before it is known to hang."""
    at_once = 5 if fault == "kill" else 1
    groups, count, runs = rounds(2, 30 // at_once), 12 * at_once, Runs(tmp_path)
    drawn, times_ms, expected = random.Random(19), list[int](), 0
    async with dispatch_processes(redis_url) as ours:
        await ours.add_dispatcher()
        await ours.add_worker(SLOW, **runs.env)
        redeliveries = Redeliveries(ours)
        for group in range(groups):
            victims = [await ours.add_worker(SLOW, **runs.env) for _ in range(at_once)]
            await connected(ours, at_once + 1)
            await ours.publish([b'{"n":%d,"s":12}' % (group * count + n) for n in range(count)])
            helds = [await all_renewed(ours, victim) for victim in victims]
            await asyncio.sleep(drawn.uniform(0, 0.7))
            at_ms = await ours.now_ms()
            for victim in victims:
                (victim.kill if fault == "kill" else victim.pause)()
            for held in helds:
                times_ms.append(max(await redeliveries.wait_after(at_ms, held)))
                expected += len(held)
            for victim in victims:
                victim.close()
            await connected(ours, 1)
        await ours.wait_settled(groups * count, deadline_s=120)
        await redeliveries.read()
        leader = await ours.wait_for_leaders()
        stalls = (await report_of(ours, leader.pid)).figures["stalls"]
        late = sum(each > LEASE_MS for each in times_ms)
        print(
            f"\n{len(times_ms)} × {fault} of a worker: its last message sent again after "
            f"{spread(times_ms)}; {late} after more than the lease of {LEASE_MS} ms; "
            f"stalls of the leader: {stalls}"
        )
        assert sum(map(len, redeliveries.at_ms.values())) >= expected
        assert (await ours.results()).counts == Counter({str(n): 1 for n in range(groups * count)})


async def all_renewed(ours: DispatchProcesses, worker: RoleProcess) -> set[str]:
    """What the worker holds and has renewed; it renews all messages of one arrival together."""
    held: set[str] = set()

    async def renewed() -> bool:
        nonlocal held
        held = await held_by(ours, f"127.0.0.1:{worker.ports['worker']}")
        return bool(held)

    await eventually(renewed, deadline_s=60)
    return held


async def test_no_live_worker_loses_a_message_while_redis_stands_still(tmp_path: Path) -> None:
    """Redis stops for longer than the lease, again and again, and a claim may be under way."""
    stalls, count, runs = rounds(4, 40), 60, Runs(tmp_path)
    drawn = random.Random(20)
    with ServerProcess() as server:
        async with dispatch_processes(server.url) as ours:
            await ours.add_dispatcher()
            for _ in range(2):
                await ours.add_worker(SLOW, **runs.env)
            await connected(ours, 2)
            seconds = stalls * 6
            await ours.publish([b'{"n":%d,"s":%d}' % (n, seconds) for n in range(count)])
            await runs.reach(count)
            for _ in range(stalls):
                server.pause()
                await asyncio.sleep(drawn.uniform(2.1, 4.5))
                server.resume()
                await asyncio.sleep(drawn.uniform(0.1, 1.5))
            await ours.wait_settled(count, deadline_s=seconds + 120)
            redeliveries = Redeliveries(ours)
            await redeliveries.read()
            print(
                f"\n{stalls} stalls of Redis of 2.1 to 4.5 s: {runs.counts().total()} runs of "
                f"{count} messages, {len(redeliveries.at_ms)} sent again"
            )
            assert not redeliveries.at_ms
            assert runs.counts() == Counter({str(n): 1 for n in range(count)})
