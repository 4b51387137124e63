"""The cost of a reply among ten and among a million open conversations, in Redis' own time.

A conversation is open while one of its replies waits. So many are opened first, then replies of
other conversations go through all their five steps.
"""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

import uvloop
from tests.kit.sample import sample_ground
from tests.kit.server import ServerProcess

from angarium.conversations.answers import NewReply
from angarium.conversations.model import MinMessageInfo
from angarium.conversations.store import ConversationStore
from angarium.core import keyspace as keys
from benchmarks.conversations import TASK, Ours, spread
from benchmarks.measure import ATTEMPTS_MAX, STEAL_MAX, _cpu_times, _redis_figures, _steal_since

SIZES = (10, 1_000, 100_000, 1_000_000)
REPLIES = 5_000
ROUNDS = 5
WARM_UP = 50_000
HOUR_MS = 3_600_000
# Nothing may expire while it is measured.
SETTINGS = {"message_ttl": HOUR_MS, "awaited_message_ttl": HOUR_MS}


def main() -> None:
    uvloop.run(_main())


async def _main() -> None:
    print("| open conversations | Redis CPU µs per reply | spread | bytes per open conversation |")
    print("|---:|---:|---:|---:|")
    with ServerProcess() as server:
        witness = server.client(decode_responses=True)
        off = {"enabled": False}
        async with (
            sample_ground(server.url, conversations=SETTINGS) as ground,
            sample_ground(
                server.url, conversations=SETTINGS, journal=off, prefix=ground.settings.prefix
            ) as beside,
        ):
            # What is opened beside needs no journal, and is there sooner without.
            store, replies = ConversationStore(beside), spread(Ours(ground).reply)
            journal = ground.keyspace.name(keys.JOURNAL)
            # Requests outlive their replies. Without those of a while ago, the first size would
            # be measured in the processor's caches and the others not.
            await replies(WARM_UP)
            witness.delete(journal)
            opened = 0
            for size in SIZES:
                before = int(witness.info("memory")["used_memory"])
                await _open(store, opened, size)
                used = int(witness.info("memory")["used_memory"]) - before
                # A few are lost in what the server frees and takes meanwhile.
                each = f"{used // (size - opened):,}" if size > 1_000 else ""
                opened = size
                costs = [await _cost(replies, witness) for _ in range(ROUNDS)]
                witness.delete(journal)
                print(
                    f"| {size:,} | {statistics.median(costs):.1f} "
                    f"| {min(costs):.1f}–{max(costs):.1f} | {each} |",
                    flush=True,
                )


async def _cost(replies: Any, witness: Any) -> float:
    for _ in range(ATTEMPTS_MAX):
        before, stolen = _redis_figures(witness), _cpu_times()
        await replies(REPLIES)
        cost = (_redis_figures(witness)[1] - before[1]) * 1e6 / REPLIES
        if _steal_since(stolen) <= STEAL_MAX:
            break
    return cost


async def _open(store: ConversationStore, opened: int, size: int) -> None:
    async def one(number: int) -> None:
        info = MinMessageInfo(f"open{number}", "", f"open{number}")
        await store.create_request(info, "bench", 1, "")
        await store.accept_reply(
            NewReply(info.conversation_id, info.request_id, f"open{number}", 1, TASK, held=True)
        )

    for start in range(opened, size, 5_000):
        await asyncio.gather(*(one(n) for n in range(start, min(size, start + 5_000))))
