"""What a large Redis costs by itself: a hash field and a set member written, read and removed.

This is the measure for «flat». The script below has nothing of ours: each item is written into a
hash and a sorted set, read, and removed again, beside so many others that are never touched. What
it costs more among a million than among ten is memory farther away, and no code of ours. The sizes
have servers of their own and take turns, as those of the modules do.
"""

from __future__ import annotations

import contextlib
import statistics
from dataclasses import dataclass, field
from typing import Any

from tests.kit.server import ServerProcess

from benchmarks.measure import ATTEMPTS_MAX, STEAL_MAX, cpu_times, redis_figures, steal_since
from benchmarks.sizes import count, rounds, sizes

SIZES = sizes(10, 1_000, 100_000, 1_000_000)
BATCH = 32
ITEMS = count(64_000, least=BATCH)
ROUNDS = rounds(9)
FILL_STEP = 10_000
PAYLOAD = "x" * 65
# Ids as a module gives them: spread over the whole table, so that neighbours in time are far apart.
FILL = """
for i = tonumber(ARGV[1]), tonumber(ARGV[2]) - 1 do
  local id = redis.sha1hex(i)
  redis.call('HSET', KEYS[1], id, ARGV[3])
  redis.call('ZADD', KEYS[2], 1e12 + i, id)
end
"""
WRITE = """
for i = 2, #ARGV do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[1])
  redis.call('ZADD', KEYS[2], 5e11 + i, ARGV[i])
end
"""
REMOVE = """
for i = 1, #ARGV do
  redis.call('HGET', KEYS[1], ARGV[i])
  redis.call('ZSCORE', KEYS[2], ARGV[i])
  redis.call('HDEL', KEYS[1], ARGV[i])
  redis.call('ZREM', KEYS[2], ARGV[i])
end
"""
KEYS = ("reach:payloads", "reach:order")


@dataclass
class Bed:
    size: int
    client: Any
    costs: list[float] = field(default_factory=list)
    used: int = 0

    def fill(self) -> None:
        for first in range(0, self.size, FILL_STEP):
            last = min(first + FILL_STEP, self.size)
            self.client.eval(FILL, 2, *KEYS, first, last, PAYLOAD)

    def go(self) -> None:
        """A thousand are written before the first of them is removed, as under load."""
        waiting: list[list[str]] = []
        for _ in range(0, ITEMS, BATCH):
            ids = [f"{(self.used + n) * 2654435761 % 2**32:08x}-item" for n in range(BATCH)]
            self.used += BATCH
            self.client.eval(WRITE, 2, *KEYS, PAYLOAD, *ids)
            waiting.append(ids)
            if len(waiting) > 1_000 // BATCH:
                self.client.eval(REMOVE, 2, *KEYS, *waiting.pop(0))
        for ids in waiting:
            self.client.eval(REMOVE, 2, *KEYS, *ids)

    def measure(self) -> None:
        for _ in range(ATTEMPTS_MAX):
            before, stolen = redis_figures(self.client), cpu_times()
            self.go()
            cost_us = (redis_figures(self.client)[1] - before[1]) * 1e6 / ITEMS
            if steal_since(stolen) <= STEAL_MAX:
                break
        self.costs.append(cost_us)


def main() -> None:
    with contextlib.ExitStack() as stack:
        beds = []
        for size in SIZES:
            server = stack.enter_context(ServerProcess())
            beds.append(Bed(size, server.client(decode_responses=True)))
            beds[-1].fill()
            beds[-1].go()
        for _ in range(ROUNDS):
            for bed in beds:
                bed.measure()
    print("## A bare script among so many entries\n")
    print("| entries | Redis CPU µs per item | ratio | spread |")
    print("|---:|---:|---:|---:|")
    for bed in beds:
        ratios = [one / other for one, other in zip(bed.costs, beds[0].costs, strict=True)]
        print(
            f"| {bed.size:,} | {statistics.median(bed.costs):.2f} "
            f"| {statistics.median(ratios):.2f} | {min(ratios):.2f}–{max(ratios):.2f} |"
        )


if __name__ == "__main__":
    main()
