"""What gathering concurrent calls brings, and what the journal costs.

64 tasks each await a one-item transition, again and again. The same script, the same keys, the
same server: only the way of calling differs.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import redis.asyncio
import uvloop
from tests.kit.sample import ACCEPT_ITEMS, SampleStore, sample_runtime
from tests.kit.server import ServerProcess

from angarium.runtime import keys
from angarium.runtime.runtime import Runtime
from benchmarks.measure import Contender, compare, table
from benchmarks.sizes import count, rounds

TASKS = 64
PAYLOAD = "x" * 100
Accept = Callable[[str, str], Awaitable[str]]
ITEMS = count(20_000, least=TASKS)
ITEMS_LARGE = count(60_000, least=TASKS)
ROUNDS = rounds(15)


def main() -> None:
    uvloop.run(_main())


async def _main() -> None:
    with ServerProcess() as server:
        witness = server.client(decode_responses=True)
        async with (
            sample_runtime(server.url) as on,
            sample_runtime(server.url, journal={"enabled": False}) as off,
        ):
            plain = redis.asyncio.Redis(port=server.port, max_connections=2 * TASKS)
            for runtime, journal in ((off, "off"), (on, "on")):
                print(f"\n## {TASKS} tasks, one-item transitions, journal {journal}\n")
                store = SampleStore(runtime)
                contenders = {
                    "redis-py, one by one": _spread(_one_by_one(plain, runtime)),
                    "Angarium, one by one": _spread(store.accept_alone),
                    "Angarium, batched": _spread(store.accept),
                }
                rows = await compare(contenders, witness, items=ITEMS, rounds=ROUNDS)
                print(table(rows, "items"))
            await plain.aclose()
            print("\n## What the journal costs, batched\n")
            contenders = {
                "journal off": _spread(SampleStore(off).accept),
                "journal on": _spread(SampleStore(on).accept),
            }
            rows = await compare(contenders, witness, items=ITEMS_LARGE, rounds=ROUNDS)
            print(table(rows, "items"))


def _one_by_one(client: redis.asyncio.Redis, runtime: Runtime) -> Accept:
    script = client.register_script(ACCEPT_ITEMS.script.source)
    name = runtime.keyspace.name
    journal = [name(keys.JOURNAL), name(keys.JOURNAL_META)]
    names = [*journal, *SampleStore(runtime).shared_keys(0)]
    journal_settings = runtime.settings.journal
    limit = journal_settings.bytes_max if journal_settings.enabled else 0

    async def accept(item_id: str, payload: str) -> str:
        (status,) = await script(keys=names, args=["", "bench", limit, 1, item_id, payload])
        return str(status)

    return accept


def _spread(accept: Accept) -> Contender:
    counter = itertools.count()

    async def task(items: int, run: int) -> None:
        for number in range(items):
            await accept(f"{run}-{number}", PAYLOAD)

    async def contend(items: int) -> None:
        runs = [next(counter) for _ in range(TASKS)]
        await asyncio.gather(*(task(items // TASKS, run) for run in runs))

    return contend
