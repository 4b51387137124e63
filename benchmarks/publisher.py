"""A publisher as a process of its own: `python -m benchmarks.publisher REDIS_URL CHANNEL ORDERS`.

It waits on the list ORDERS for «how many» or «how many, how many per second», publishes so many
messages on CHANNEL in pipelines, and waits again. It knows nothing of who listens.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

import msgspec
import uvloop

from angarium.redis.client import Redis
from angarium.settings import load

PIPELINE = 200
TICK_S = 0.01
TEXT = "x" * 40


def payload(number: int) -> dict[str, int | str]:
    """A small message. What BullMQ's jobs carry is the same."""
    return {"number": number, "text": TEXT}


async def _main(url: str, channel: str, orders: str) -> None:
    async with await Redis.connect(load(redis_url=url).redis_options()) as redis:
        print(json.dumps({"role": "publisher", "ready": True}), flush=True)
        published = 0
        while True:
            # LPOP and a short pause, for a blocking pop must not be repeated blindly.
            order = await redis.call("LPOP", orders, key=orders)
            if order is None:
                await asyncio.sleep(TICK_S)
                continue
            count, rate = (int(part) for part in order.split())
            await _publish(redis, channel, published, count, rate)
            published += count


async def _publish(redis: Redis, channel: str, first: int, count: int, rate: int) -> None:
    """`rate` 0: as fast as Redis answers."""
    encode = msgspec.json.Encoder().encode
    size = PIPELINE if rate == 0 else max(1, round(rate * TICK_S))
    began = asyncio.get_running_loop().time()
    for start in range(0, count, size):
        numbers = range(first + start, first + min(start + size, count))
        commands = [("PUBLISH", channel, encode(payload(number))) for number in numbers]
        await redis.execute(commands, key=None, repeatable=False)
        if rate:
            due = began + (start + size) / rate
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))


def main(arguments: Sequence[str]) -> None:
    url, channel, orders = arguments
    uvloop.run(_main(url, channel, orders))


if __name__ == "__main__":
    main(sys.argv[1:])
