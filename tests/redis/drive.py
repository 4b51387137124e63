"""The model for as long as one likes: many callers, faults now and then, a subscriber throughout.

    python -m tests.redis.drive --commands 1000000 --runs 10

Each run prints its seed; `--seed` makes the same choices again. How callers and faults interleave
is the machine's doing, so a failure may need several runs of its seed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import secrets
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import uvloop

from angarium.redis.client import Redis
from angarium.redis.errors import OutcomeUnknown, RedisUnavailable
from tests.kit.proxy import FaultProxy
from tests.kit.server import ServerProcess
from tests.redis.model import FAULTS, Model, WrongAnswer, befall, modelled

CALLERS = 32
# Faults come this often on the average, and last this long at most.
FAULT_EVERY_S = 0.05
FAULT_S_MAX = 0.1
CANCELLED_SHARE = 0.05

Fault = Callable[[], Awaitable[str]]


class Listener:
    """Publishes numbers and hears them: in order, and none missing but where a gap was told."""

    def __init__(self, redis: Redis, channel: str) -> None:
        self._redis = redis
        self._channel = channel
        self._answered: set[int] = set()
        self._heard: list[int | None] = []
        self.published = 0

    async def publish(self) -> None:
        while True:
            self.published += 1
            command = ("PUBLISH", self._channel, self.published)
            with contextlib.suppress(OutcomeUnknown, RedisUnavailable):
                (reached,) = await self._redis.execute([command], key=None, repeatable=False)
                if reached:
                    self._answered.add(self.published)
            await asyncio.sleep(0.001)

    async def listen(self) -> None:
        async with self._redis.subscribe(self._channel) as subscription:
            while True:
                batch = await subscription.receive()
                for at, message in enumerate(batch.messages):
                    if batch.gap and at == batch.before_gap:
                        self._heard.append(None)
                    self._heard.append(int(message.payload))
                if batch.gap and batch.before_gap == len(batch.messages):
                    self._heard.append(None)

    def check(self) -> int:
        """How many were heard."""
        last: int | None = None
        for number in self._heard:
            if number is None:
                last = None
                continue
            if last is not None:
                missing = self._answered & set(range(last + 1, number))
                if number <= last or missing:
                    raise WrongAnswer(f"after {last} came {number}; missing {sorted(missing)[:5]}")
            last = number
        return sum(number is not None for number in self._heard)


async def drive(model: Model, rng: random.Random, commands: int, fault: Fault) -> Counter[str]:
    """Until so many commands were sent or an answer was wrong; what happened."""
    listener = Listener(model.redis, f"{model.prefix}-channel")
    happened: Counter[str] = Counter()

    async def caller(own: random.Random) -> None:
        while model.commands < commands and not model.wrong:
            asking = asyncio.ensure_future(model.ask(own.choice(model.kinds)))
            if own.random() < CANCELLED_SHARE:
                for _ in range(own.randrange(4)):
                    await asyncio.sleep(0)
                asking.cancel()
            await asyncio.wait([asking])
            if not asking.cancelled():
                asking.result()

    async def faults() -> None:
        while True:
            await asyncio.sleep(rng.expovariate(1 / FAULT_EVERY_S))
            happened[await fault()] += 1

    async with asyncio.TaskGroup() as group:
        others = [group.create_task(run()) for run in (faults, listener.publish, listener.listen)]
        async with asyncio.TaskGroup() as callers:
            for number in range(CALLERS):
                callers.create_task(caller(random.Random(f"{rng.random()}-{number}")))
        for task in others:
            task.cancel()
    happened["heard"] = listener.check()
    happened["published"] = listener.published
    return happened


async def drive_one(port: int, seed: int, commands: int) -> tuple[Model, Counter[str]]:
    """On one server behind a proxy."""
    rng = random.Random(seed)
    async with modelled(port, rng) as (model, proxy):
        happened = await drive(model, rng, commands, proxy_faults(proxy, rng))
        proxy.heal()
        await model.settle()
    return model, happened


def proxy_faults(proxy: FaultProxy, rng: random.Random) -> Fault:
    async def fault() -> str:
        kind = rng.choice(FAULTS)
        befall(proxy, kind, rng)
        await asyncio.sleep(rng.random() * FAULT_S_MAX)
        proxy.heal()
        return kind

    return fault


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.redis.drive")
    parser.add_argument("--commands", type=int, default=1_000_000, help="in all runs together")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, help="of the first run; the next ones count up")
    given = parser.parse_args()
    first = secrets.randbelow(1 << 32) if given.seed is None else given.seed
    sent = 0
    with ServerProcess() as server:
        for seed in range(first, first + given.runs):
            began = time.monotonic()
            print(f"seed {seed}: ", end="", flush=True)
            model, happened = uvloop.run(drive_one(server.port, seed, given.commands // given.runs))
            sent += model.commands
            took_s = time.monotonic() - began
            print(f"{model.commands:,} commands, {took_s:.0f} s; {dict(model.outcomes)};", end=" ")
            print(f"{dict(happened)}", flush=True)
    print(f"{sent:,} commands, every answer its own")
    return 0


if __name__ == "__main__":
    sys.exit(main())
