"""Gathered calls in a process of their own: `batching_driver.py REDIS_URL ORDERS`.

Run as a file, so that the source which PYTHONPATH names is measured, also that of 0.1.0, where the
sample of the tests has another name. It waits on the list ORDERS for a number of calls, makes them
from 64 tasks, clears its keys, and pushes the number to ORDERS:done.
"""

import asyncio
import json
import sys

import uvloop
from tests.kit import sample

TASKS = 64
PAYLOAD = "x" * 100
TICK_S = 0.005


async def _task(store: sample.SampleStore, calls: int, name: str) -> None:
    for number in range(calls):
        await store.accept(f"{name}-{number}", PAYLOAD)


async def _main(url: str, orders: str) -> None:
    opened = getattr(sample, "sample_runtime", None) or sample.sample_ground  # type: ignore[attr-defined, unused-ignore]
    async with opened(url) as runtime:
        store = sample.SampleStore(runtime)
        redis = runtime.redis
        print(json.dumps({"role": "caller", "ready": True}), flush=True)
        while True:
            order = await redis.call("LPOP", orders, key=orders)
            if order is None:
                await asyncio.sleep(TICK_S)
                continue
            calls = int(order)
            tasks = (_task(store, calls // TASKS, f"{each}") for each in range(TASKS))
            await asyncio.gather(*tasks)
            for name in store.shared_keys(0):
                await redis.call("DEL", name, key=name)
            done = f"{orders}:done"
            await redis.call("RPUSH", done, calls, key=done)


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:]))
