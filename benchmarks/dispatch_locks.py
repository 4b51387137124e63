"""How long a leader's lock should live: stall at a kill, false failovers, load on Redis.

Two dispatchers and a worker, one partition. For each expiry the leader is killed (kill -9) several
times under a steady load; the stall is the longest time without a result, read from the times that
Redis gave the results. Then nobody is killed: a heavy load, alone and beside processes that take
all the CPU they get, and pauses (SIGSTOP) of the leader and of Redis, as a machine that is moved
or a disk that hangs brings them; each new term there is a failover that nobody needed. Last,
nothing is sent at all, and what keeps the lock is counted.

`make bench ONLY=dispatch_locks` runs all, `python -m benchmarks.dispatch_locks 500 2000` some.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from tests.kit.leash import LeashedProcess
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess

from benchmarks.end_to_end import wait_for
from benchmarks.fabric import DEADLINE_S, Fabric
from benchmarks.measure import cpu_times, steal_since

LOCKS_MS = (500, 1_000, 2_000, 3_000, 5_000)
KILLS = 6
RATE = 2_000
# After a kill and after a start, so that one does not fall into the other.
SETTLE_S = 1.0
# About a third of what two cores do at full speed.
RATE_HEAVY = 15_000
HEAVY_S = 10
HOGS = 4
PAUSES_S = (0.5, 1.0, 2.0)
PAUSES = 4
IDLE_S = 6.0
# A renewal is a PEXPIRE, the look of one that waits a PTTL or, when it has its share, an EXISTS.
LOCK_COMMANDS = ("pexpire", "pttl", "exists")


@dataclass(frozen=True)
class Killed:
    stalls_ms: Sequence[int]
    published: int
    lost: int
    doubled: int


@dataclass(frozen=True)
class Row:
    lock_ms: int
    killed: Killed
    heavy: int
    starved: int
    leader_paused: Sequence[int]
    redis_paused: Sequence[int]
    calls_per_s: float
    steal: float


def measure(lock_ms: int) -> Row:
    stolen = cpu_times()
    settings = {"ANGARIUM_DISPATCH__LOCK_MS": str(lock_ms)}
    with (
        ServerProcess() as server,
        Fabric(f"{lock_ms} ms", server, dispatchers=2, settings=settings) as fabric,
    ):
        witness = server.client(decode_responses=True)
        killed = _kill(fabric, witness, lock_ms)
        fabric.reset()
        heavy = _failovers(fabric, witness)
        fabric.reset()
        with _hogs():
            starved = _failovers(fabric, witness)
        leader = [_paused(fabric, witness, each) for each in PAUSES_S]
        redis = [_paused(fabric, witness, each, server) for each in PAUSES_S]
        calls = _idle_calls(witness)
    return Row(lock_ms, killed, heavy, starved, leader, redis, calls, steal_since(stolen))


def _kill(fabric: Fabric, witness: Any, lock_ms: int) -> Killed:
    fabric.reset()
    killed_at_ms: list[int] = []
    with _steady(fabric, witness) as published:
        for _ in range(KILLS):
            # Anywhere between two renewals.
            time.sleep(SETTLE_S + random.uniform(0.0, lock_ms / 3000))
            leader, term = _leader(fabric, witness), _term(fabric, witness)
            killed_at_ms.append(_now_ms(witness))
            leader.kill()
            wait_for(lambda old=term: _term(fabric, witness) > old, DEADLINE_S, "a new leader")
            time.sleep(SETTLE_S)
            fabric.add_dispatcher()
    total = published()
    wait_for(lambda: fabric.results() >= total, DEADLINE_S, "the last results")
    time.sleep(SETTLE_S)
    entries = witness.xrange(fabric.streams[0])
    times_ms = [int(entry_id.partition("-")[0]) for entry_id, _ in entries]
    numbers = Counter(fields["number"] for _, fields in entries)
    return Killed(
        [_stall_ms(times_ms, at_ms, lock_ms) for at_ms in killed_at_ms],
        published=total,
        lost=total - len(numbers),
        doubled=sum(numbers.values()) - len(numbers),
    )


def _stall_ms(times_ms: Sequence[int], killed_at_ms: int, lock_ms: int) -> int:
    """The longest gap that ends behind the kill, before the next one could begin."""
    end_ms = killed_at_ms + 2 * lock_ms + 1_000
    pairs = itertools.pairwise(times_ms)
    return max(after - before for before, after in pairs if killed_at_ms < after < end_ms)


def _failovers(fabric: Fabric, witness: Any) -> int:
    """New terms while everybody is well, if slow."""
    wanted = fabric.results() + RATE_HEAVY * HEAVY_S
    before = _term(fabric, witness)
    fabric.order(RATE_HEAVY * HEAVY_S, RATE_HEAVY)
    wait_for(lambda: fabric.results() >= wanted, DEADLINE_S, "a heavy load")
    return _term(fabric, witness) - before


def _paused(
    fabric: Fabric, witness: Any, pause_s: float, server: ServerProcess | None = None
) -> int:
    """In how many of several pauses, of the leader or of Redis itself, the lock was lost."""
    lost = 0
    for _ in range(PAUSES):
        time.sleep(random.uniform(0.2, 0.7))
        process = server or _leader(fabric, witness)
        before = _term(fabric, witness)
        process.pause()
        time.sleep(pause_s)
        process.resume()
        time.sleep(0.5)
        _leader(fabric, witness)
        lost += _term(fabric, witness) > before
    return lost


def _idle_calls(witness: Any) -> float:
    time.sleep(SETTLE_S)
    before, began = _calls(witness), time.monotonic()
    time.sleep(IDLE_S)
    return (_calls(witness) - before) / (time.monotonic() - began)


def _calls(witness: Any) -> int:
    stats = witness.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in LOCK_COMMANDS)


@contextmanager
def _steady(fabric: Fabric, witness: Any) -> Iterator[Any]:
    """Publishing all the time; yields what tells how many were ordered in the end."""
    orders, over = 0, threading.Event()

    def feed() -> None:
        nonlocal orders
        while not over.is_set():
            # One second's work waits while another is done, so that there is never a pause.
            if fabric.orders_waiting() < 1:
                fabric.order(RATE, RATE)
                orders += 1
            time.sleep(0.05)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield lambda: orders * RATE
    finally:
        over.set()
        feeder.join()


@contextmanager
def _hogs() -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(HOGS):
            stack.callback(LeashedProcess([sys.executable, "-c", "while True: pass"]).close)
        yield


def _leader(fabric: Fabric, witness: Any) -> RoleProcess:
    """Whose pid is in the lock, «term:host-pid-random/random»."""
    wait_for(lambda: witness.exists(fabric.locks[0]), DEADLINE_S, "a leader")
    pid = int(witness.get(fabric.locks[0]).rpartition("/")[0].rsplit("-", 2)[1])
    return next(each for each in fabric.dispatchers if each.alive and each.pid == pid)


def _term(fabric: Fabric, witness: Any) -> int:
    return int(witness.get(fabric.terms[0]))


def _now_ms(witness: Any) -> int:
    seconds, micros = witness.time()
    return int(seconds) * 1000 + int(micros) // 1000


def _stall_line(row: Row) -> str:
    stalls = sorted(row.killed.stalls_ms)
    return (
        f"| {row.lock_ms:,} | {statistics.median(stalls):,.0f} | {stalls[0]:,}–{stalls[-1]:,} "
        f"| {len(stalls)} | {row.killed.published:,} | {row.killed.lost} | {row.killed.doubled} "
        f"| {row.calls_per_s:.1f} | {row.steal:.1%} |"
    )


def _false_line(row: Row) -> str:
    leader, redis = (" / ".join(map(str, each)) for each in (row.leader_paused, row.redis_paused))
    return f"| {row.lock_ms:,} | {row.heavy} | {row.starved} | {leader} | {redis} |"


def main(locks_ms: Sequence[int] = LOCKS_MS) -> None:
    rows = [measure(lock_ms) for lock_ms in locks_ms]
    print("## The leader's lock: stall when it is killed\n")
    print(
        "| expiry ms | stall ms, median | from–to | kills | published | lost | doubled "
        "| calls/s for the lock | steal |\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    print(*map(_stall_line, rows), sep="\n")
    print("\n## The leader's lock: failovers that nobody needed\n")
    pauses = " / ".join(f"{each:g}" for each in PAUSES_S)
    print(
        f"| expiry ms | in {HEAVY_S} s of heavy load | the same, starved of CPU "
        f"| in {PAUSES} pauses each of the leader, {pauses} s | the same of Redis |"
        "\n|---:|---:|---:|---:|---:|"
    )
    print(*map(_false_line, rows), sep="\n")


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or LOCKS_MS)
