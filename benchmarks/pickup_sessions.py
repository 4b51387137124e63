"""The cost of a message for a live session among a thousand and among a million, in Redis' time.

A million sockets do not fit on one machine, so the sessions stand in Redis only, as if gateways
held them: messages are added, go to a session of this process at once, and are removed. Each size
has a server of its own, and rounds go from one to the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import uuid
from dataclasses import dataclass
from typing import Any

import uvloop
from tests.kit.sample import sample_runtime
from tests.kit.server import ServerProcess

from angarium.pickup.store import PickupStore
from angarium.runtime import keys
from benchmarks.measure import (
    ATTEMPTS_MAX,
    STEAL_MAX,
    cpu_times,
    redis_figures,
    steal_since,
)
from benchmarks.sizes import count, rounds, sizes

SIZES = sizes(1_000, 10_000, 100_000, 1_000_000)
MESSAGES = count(5_000, least=250)
ROUNDS = rounds(7)
BATCH = 250
OPENED_AT_ONCE = 2_000
PAYLOAD = b'{"ciphertext":"' + b"x" * 1_150 + b'"}'
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Bed:
    size: int
    store: PickupStore
    witness: Any
    journal: str
    session_bytes: float
    numbers: Any


def main() -> None:
    uvloop.run(_main())


async def _main() -> None:
    async with contextlib.AsyncExitStack() as stack:
        beds = [await _prepare(stack, size) for size in SIZES]
        costs: dict[int, list[float]] = {size: [] for size in SIZES}
        for _ in range(ROUNDS):
            for bed in beds:
                costs[bed.size].append(await _cost(bed))
                bed.witness.delete(bed.journal)
    print("## A message among so many live sessions\n")
    print("| live sessions | Redis CPU µs per message | spread | bytes per session |")
    print("|---:|---:|---:|---:|")
    for bed in beds:
        found = costs[bed.size]
        print(
            f"| {bed.size:,} | {statistics.median(found):.1f} | {min(found):.1f}–{max(found):.1f} "
            f"| {bed.session_bytes:,.0f} |"
        )


async def _prepare(stack: contextlib.AsyncExitStack, size: int) -> Bed:
    server = stack.enter_context(ServerProcess())
    witness = server.client(decode_responses=True)
    lasting = {"lease_ms": HOUR_MS}
    runtime = await stack.enter_async_context(sample_runtime(server.url, pickup=lasting))
    store = PickupStore(runtime, send_at_once=True)
    await store.moves.write_counts(0, [], last=True)  # the database has no mail
    await store.sessions.renew_gateway(0)
    journal = runtime.keyspace.name(keys.JOURNAL)
    before = int(witness.info("memory")["used_memory"])
    for start in range(0, size, OPENED_AT_ONCE):
        names = [_queue(number) for number in range(start, min(size, start + OPENED_AT_ONCE))]
        await asyncio.gather(*(store.sessions.open(name, "s", "socket") for name in names))
        witness.delete(journal)
    used = int(witness.info("memory")["used_memory"]) - before
    bed = Bed(size, store, witness, journal, used / size, itertools.count())
    await _through(bed)
    return bed


async def _cost(bed: Bed) -> float:
    for _ in range(ATTEMPTS_MAX):
        before, stolen = redis_figures(bed.witness), cpu_times()
        await _through(bed)
        cost = (redis_figures(bed.witness)[1] - before[1]) * 1e6 / MESSAGES
        if steal_since(stolen) <= STEAL_MAX:
            break
    return cost


async def _through(bed: Bed) -> None:
    """Spread over the sessions by strides, so that no two near ones share a cache line."""
    stride = max(1, int(bed.size * 0.618)) | 1
    for _ in range(0, MESSAGES, BATCH):
        mail = [
            (_queue(next(bed.numbers) * stride % bed.size), uuid.uuid4().hex) for _ in range(BATCH)
        ]
        added = await asyncio.gather(*(bed.store.add(q, i, "did:x", PAYLOAD) for q, i in mail))
        assert all(answer[0] == b"sent" for answer in added), added[0]
        await asyncio.gather(*(bed.store.remove(q, "removed", [i]) for q, i in mail))


def _queue(number: int) -> str:
    return f"connection-{number:032}"
