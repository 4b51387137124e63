"""The cost of a reply among ten and among a million open conversations, in Redis' own time.

A conversation is open while one of its replies waits. Each size has a server of its own, on which
so many are opened first. Then replies of other conversations go through all their five steps, on
one server after the other in each round: what else the machine does meanwhile hits all sizes.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from dataclasses import dataclass
from typing import Any

import uvloop
from tests.kit.sample import sample_runtime
from tests.kit.server import ServerProcess

from angarium.conversations.model import MinMessageInfo
from angarium.conversations.script_values import NewReply
from angarium.conversations.store import ConversationStore
from angarium.runtime import keys
from benchmarks.conversations import TASK, Ours, spread
from benchmarks.measure import (
    ATTEMPTS_MAX,
    STEAL_MAX,
    Contender,
    cpu_times,
    redis_figures,
    steal_since,
)
from benchmarks.sizes import count, rounds, sizes

SIZES = sizes(10, 1_000, 100_000, 1_000_000)
REPLIES = count(5_000, least=256)
ROUNDS = rounds(7)
WARM_UP = count(30_000, least=256)
HOUR_MS = 3_600_000
# Nothing may expire while it is measured.
SETTINGS = {"message_ttl": HOUR_MS, "awaited_message_ttl": HOUR_MS}


def main() -> None:
    uvloop.run(_main())


async def _main() -> None:
    async with contextlib.AsyncExitStack() as stack:
        beds = [await _prepare(stack, size) for size in SIZES]
        costs: dict[int, list[float]] = {size: [] for size in SIZES}
        for _ in range(ROUNDS):
            for bed in beds:
                costs[bed.size].append(await _cost(bed.replies, bed.witness))
                bed.witness.delete(bed.journal)
    print("## A reply among so many open conversations\n")
    print("| open conversations | Redis CPU µs per reply | spread | bytes per open conversation |")
    print("|---:|---:|---:|---:|")
    for bed in beds:
        found = costs[bed.size]
        # Of a few, what the server takes and frees meanwhile says more than they do.
        each = f"{bed.used_bytes // bed.size:,}" if bed.size > 1_000 else ""
        spread_text = f"{min(found):.1f}–{max(found):.1f}"
        print(f"| {bed.size:,} | {statistics.median(found):.1f} | {spread_text} | {each} |")


@dataclass(frozen=True)
class _Bed:
    size: int
    witness: Any
    replies: Contender
    journal: str
    used_bytes: int


async def _prepare(stack: contextlib.AsyncExitStack, size: int) -> _Bed:
    server = stack.enter_context(ServerProcess())
    runtime = await stack.enter_async_context(sample_runtime(server.url, conversations=SETTINGS))
    # What is opened beside needs no journal, and is there sooner without.
    beside = await stack.enter_async_context(
        sample_runtime(
            server.url,
            conversations=SETTINGS,
            journal={"enabled": False},
            prefix=runtime.settings.prefix,
        )
    )
    witness, replies = server.client(decode_responses=True), spread(Ours(runtime).reply)
    journal = runtime.keyspace.name(keys.JOURNAL)
    # Requests outlive their replies. Without those of a while ago, the smallest size would be
    # measured in the processor's caches and the others not.
    await replies(WARM_UP)
    witness.delete(journal)
    before = int(witness.info("memory")["used_memory"])
    await _open(ConversationStore(beside), size)
    used = int(witness.info("memory")["used_memory"]) - before
    return _Bed(size, witness, replies, journal, used)


async def _cost(replies: Contender, witness: Any) -> float:
    for _ in range(ATTEMPTS_MAX):
        before, stolen = redis_figures(witness), cpu_times()
        await replies(REPLIES)
        cost = (redis_figures(witness)[1] - before[1]) * 1e6 / REPLIES
        if steal_since(stolen) <= STEAL_MAX:
            break
    return cost


async def _open(store: ConversationStore, size: int) -> None:
    async def one(number: int) -> None:
        info = MinMessageInfo(f"open{number}", "", f"open{number}")
        await store.create_request(info, "bench", 1, "")
        await store.accept_reply(
            NewReply(info.conversation_id, info.request_id, f"open{number}", 1, TASK, held=True)
        )

    for start in range(0, size, 5_000):
        await asyncio.gather(*(one(n) for n in range(start, min(size, start + 5_000))))
