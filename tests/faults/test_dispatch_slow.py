"""Slow functions in worker processes: healthy, killed, paused, crashed by one of the messages.

What a live worker has runs once, however long it takes. What a dead or hanging one had is due again
within the lease. A message that kills its worker becomes a dead letter and takes no other with it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from angarium.runtime.journal import Journal, decode_entry
from angarium.runtime.process_report import ProcessReport, read_processes
from tests.dispatch.processes import DispatchProcesses, dispatch_processes
from tests.dispatch.slow import RUNS
from tests.faults.profile import LONG, rounds
from tests.kit.eventually import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900 if LONG else 240)]
SLOW = "tests.dispatch.slow:app"
DEADLINE_S = 400 if LONG else 90


class Runs:
    """The runs of the function, by message, over all processes."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "runs"
        self.env = {RUNS: str(self._file)}

    def counts(self) -> Counter[str]:
        return Counter(self._file.read_text().split() if self._file.exists() else ())

    async def reach(self, count: int) -> Counter[str]:
        await eventually(lambda: self.counts().total() >= count, deadline_s=60)
        return self.counts()


async def check_each_ran_once(
    redis_url: str, runs: Runs, seconds: list[float], workers: int, concurrency: int
) -> None:
    count = len(seconds)
    settings = {"worker_concurrency": concurrency}
    async with dispatch_processes(redis_url, dispatch=settings) as ours:
        await ours.add_dispatcher()
        for _ in range(workers):
            await ours.add_worker(SLOW, **runs.env)
        await ours.wait_for_leaders()
        began_ms = await ours.now_ms()
        await ours.publish([b'{"n":%d,"s":%.3f}' % (n, s) for n, s in enumerate(seconds)])
        await ours.wait_settled(count, deadline_s=DEADLINE_S)
        found = await ours.results()
        dead = (await ours.store.status(0)).dead
        doubled = sum(each - 1 for each in found.counts.values())
        print(
            f"{count} messages of {min(seconds):.1f} to {max(seconds):.1f} s, {workers} workers of "
            f"{concurrency}: {runs.counts().total()} runs, {doubled} doubled, {dead} dead, "
            f"{(max(found.at_ms) - began_ms) / 1000:.0f} s"
        )
        each_once = Counter({str(n): 1 for n in range(count)})
        assert found.counts == each_once
        assert runs.counts() == each_once
        assert dead == 0


@pytest.mark.parametrize("seconds", [3, 30] if LONG else [3])
async def test_f3_a_slow_function_runs_once_for_each_message(
    redis_url: str, tmp_path: Path, seconds: float
) -> None:
    count = rounds(300, 3_000)
    concurrency = 1_000 if seconds > 3 else rounds(100, 300)
    await check_each_ran_once(redis_url, Runs(tmp_path), [seconds] * count, 1, concurrency)


async def test_f3_functions_of_any_length_run_once_on_three_workers(
    redis_url: str, tmp_path: Path
) -> None:
    drawn = random.Random(11)
    seconds = [drawn.uniform(0, rounds(3, 10)) for _ in range(rounds(150, 3_000))]
    await check_each_ran_once(redis_url, Runs(tmp_path), seconds, 3, rounds(50, 100))


async def redelivered_ms(ours: DispatchProcesses) -> list[int]:
    """When messages were sent again, by the journal."""
    found: list[int] = []
    position = "0-0"
    while entries := await Journal(ours.runtime).read(0, position):
        position = entries[-1][0].decode()
        for entry_id, fields in entries:
            events = decode_entry(entry_id, fields).events
            again = [each for each in events if each.event == "redelivered"]
            found += [int(entry_id.partition(b"-")[0])] * len(again)
    return found


async def report_of(ours: DispatchProcesses, pid: int) -> ProcessReport:
    found = [each for each in await read_processes(ours.runtime) if each.pid == pid]
    assert found, f"no report of process {pid}"
    return found[0]


@pytest.mark.parametrize("fault", ["kill", "pause"])
async def test_what_a_dead_or_hanging_worker_had_goes_to_another_one(
    redis_url: str, tmp_path: Path, fault: str
) -> None:
    count, runs = 100, Runs(tmp_path)
    async with dispatch_processes(redis_url) as ours:
        await ours.add_dispatcher()
        victim = await ours.add_worker(SLOW, **runs.env)
        await ours.wait_for_leaders()
        await ours.publish([b'{"n":%d,"s":20}' % n for n in range(count)])
        await runs.reach(count)
        other = await ours.add_worker(SLOW, **runs.env)
        at_ms = await ours.now_ms()
        (victim.kill if fault == "kill" else victim.pause)()
        await ours.wait_settled(count, deadline_s=DEADLINE_S)
        again_ms = await redelivered_ms(ours)
        print(
            f"{fault} of a worker with {count} messages of 20 s: all sent again "
            f"{min(again_ms) - at_ms} to {max(again_ms) - at_ms} ms later, the lease is 2000 ms"
        )
        assert len(again_ms) == count
        if fault == "pause":
            victim.resume()

            async def refused() -> bool:
                """The woken worker finishes what it had: all of it is finished elsewhere."""
                figures = (await report_of(ours, victim.pid)).figures
                return figures["duplicates"] == count and figures["completed"] == 0

            await eventually(refused, deadline_s=60)
        assert runs.counts() == Counter({str(n): 2 for n in range(count)})
        found = await ours.results()
        assert found.counts == Counter({str(n): 1 for n in range(count)})
        assert len(found.consumers) == 1, f"all results are of {other.pid}"
        assert (await ours.store.status(0)).dead == 0


async def test_slow_messages_stay_with_their_worker_when_the_leader_is_killed(
    redis_url: str, tmp_path: Path
) -> None:
    count, runs = 20, Runs(tmp_path)
    async with dispatch_processes(redis_url, dispatch={"lock_ms": 1_000}) as ours:
        await ours.add_dispatcher()
        await ours.add_dispatcher()
        await ours.add_worker(SLOW, **runs.env)
        leader = await ours.wait_for_leaders()
        await ours.publish([b'{"n":%d,"s":8}' % n for n in range(count)])
        await runs.reach(count)
        leader.kill()
        await ours.wait_settled(count, deadline_s=DEADLINE_S)
        each_once = Counter({str(n): 1 for n in range(count)})
        assert (await ours.results()).counts == each_once
        assert runs.counts() == each_once, "each message ran once"


async def supervise(ours: DispatchProcesses, runs: Runs) -> None:
    """Start a worker again whenever it has ended, as systemd or Kubernetes does."""
    while True:
        worker = await ours.add_worker(SLOW, **runs.env)
        await eventually(lambda: not worker.alive, deadline_s=900)  # noqa: B023


async def test_a_message_that_kills_its_worker_dies_alone(redis_url: str, tmp_path: Path) -> None:
    """Neighbours wait, run and arrive beside it on one worker, and each takes longer to run than
    the crash."""
    deliveries_max, runs = rounds(6, 10), Runs(tmp_path)
    before, later = 40, rounds(20, 100)
    settings = {"deliveries_max": deliveries_max, "worker_concurrency": 20}
    async with dispatch_processes(redis_url, dispatch=settings) as ours:
        await ours.add_dispatcher()
        await ours.wait_for_leaders()
        supervisor = asyncio.create_task(supervise(ours, runs))
        try:
            payloads = [b'{"n":%d,"s":1}' % n for n in range(before)]
            payloads.insert(10, b'{"n":"poison","exit":3}')
            await ours.publish(payloads)
            await runs.reach(1)
            at_ms = await ours.now_ms()
            for n in range(later):
                await ours.publish([b'{"n":%d,"s":1}' % (before + n)])
                await asyncio.sleep(0.3)
            await ours.wait_settled(before + later, deadline_s=120)
            (dead,) = await ours.store.dead_letters(0, 10)
            counts = runs.counts()
            poisoned = counts.pop("poison")
            print(
                f"{poisoned} workers killed, set aside after {(dead.at_ms - at_ms) / 1000:.1f} s; "
                f"{before + later} neighbours: {counts.total()} runs, at most "
                f"{max(counts.values())} each"
            )
            assert b"poison" in (dead.payload or b"")
            assert poisoned == deliveries_max
            assert len(dead.reasons) == deliveries_max
            assert "no renewal" in dead.reasons[-1]
            results = (await ours.results()).counts
            assert results == Counter({str(n): 1 for n in range(before + later)})
            assert max(counts.values()) < deliveries_max
        finally:
            supervisor.cancel()


async def test_a_thousand_slow_functions_cost_a_worker_little(
    redis_url: str, tmp_path: Path
) -> None:
    """CPU of the worker and of the dispatcher while a thousand functions wait on one worker."""
    count, seconds, runs = 1_000, rounds(12, 60), Runs(tmp_path)
    async with dispatch_processes(redis_url, dispatch={"worker_concurrency": count}) as ours:
        dispatcher = await ours.add_dispatcher()
        worker = await ours.add_worker(SLOW, **runs.env)
        await ours.wait_for_leaders()
        watched = {"worker": worker.pid, "dispatcher": dispatcher.pid}
        idle = await cpu_parts(watched, seconds * 0.3)
        await ours.publish([b'{"n":%d,"s":%d}' % (n, seconds) for n in range(count)])
        await runs.reach(count)
        busy = await cpu_parts(watched, seconds * 0.8)
        renewed = float((await report_of(ours, worker.pid)).figures["renewed"])
        print(
            f"\n{count} functions of {seconds} s on one worker: "
            + ", ".join(
                f"{name} {part:.2%} of a core, {idle[name]:.2%} idle" for name, part in busy.items()
            )
            + f"; {renewed:.0f} renewals"
        )
        await ours.wait_settled(count, deadline_s=DEADLINE_S)
        assert renewed > count
        assert runs.counts().total() == count


async def cpu_parts(watched: dict[str, int], span_s: float) -> dict[str, float]:
    """The part of a core that each process takes in this time."""
    before, began_s = {name: cpu_s(pid) for name, pid in watched.items()}, time.monotonic()
    await asyncio.sleep(span_s)
    took_s = time.monotonic() - began_s
    return {name: (cpu_s(pid) - before[name]) / took_s for name, pid in watched.items()}


def cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
