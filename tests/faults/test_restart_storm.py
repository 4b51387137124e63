"""Many clean restarts of every role leave nothing behind in Redis. The lake has a test of its own.

A restart is a new runtime with the service of the role, in this process, so that thousands fit in a
run. Each does some work. The keys and their sizes are counted after a few restarts and at the end.
"""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from angarium import Angarium
from angarium.dispatch.keys import LEADER_LOCK
from angarium.modules import MODULES
from angarium.routing.items import InboundMessage
from angarium.routing.service import RoutingService
from angarium.runtime.keys import JOURNAL
from angarium.runtime.keyspace import Key
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.transactions import Step, keys
from angarium.transactions.model import TransactionStart
from angarium.transactions.pipeline import pipeline_of
from angarium.transactions.pipeline_store import PipelineStore
from angarium.transactions.service import TransactionsService
from tests.faults.profile import rounds
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1_800)]
RESTARTS, FIRST = rounds(100, 1_000), 20
LENGTHS = {
    b"string": "STRLEN",
    b"hash": "HLEN",
    b"zset": "ZCARD",
    b"set": "SCARD",
    b"list": "LLEN",
    b"stream": "XLEN",
}
# These end by their own limit: the journal by its size, statistics after a day.
ENDING: tuple[Key, ...] = (JOURNAL, keys.STATS_FINE, keys.STATS_MEDIUM, keys.STATS_COARSE)
INBOUND = [["http", "127.0.0.1", "0"], ["ws", "127.0.0.1", "0"]]
app = Angarium()


@app.step("work")
async def work(step: Step) -> None: ...


@app.worker
async def answer(message: dict[str, Any]) -> None: ...


@app.inbox()
async def handle(message: InboundMessage) -> None: ...


async def census(runtime: Runtime) -> dict[str, int]:
    """Key → its length."""
    redis, prefix = runtime.redis, runtime.settings.prefix
    stems = tuple(prefix + key.name.partition("{")[0] for key in ENDING)
    found: dict[str, int] = {}
    cursor = b"0"
    while True:
        cursor, names = await redis.call("SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", 1_000)
        for name in names:
            if not name.decode().startswith(stems):
                kind = await redis.call("TYPE", name, key=name.decode())
                if kind == b"none":
                    continue  # ended since SCAN saw it
                length = await redis.call(LENGTHS[kind], name, key=name.decode())
                # A counter's number of digits says nothing.
                found[name.decode()] = 1 if kind == b"string" else int(length)
        if cursor == b"0":
            return found


async def _restarted(here: Runtime, role: str, number: int) -> None:
    """One life of a process with this role."""
    async with Runtime.open(here.settings, actor=f"{role}-{number}") as runtime:
        service: Service = import_module(role).build(runtime, app)
        await service.start()
        try:
            await _work(runtime, role, number)
        finally:
            await service.stop(10)


async def _work(runtime: Runtime, role: str, number: int) -> None:
    if role.endswith("node"):
        client = TransactionsService(runtime)
        id = (await client.start(TransactionStart("p"))).transaction_id

        async def ended() -> bool:
            return (await client.get(id)).status == "success"

        await eventually(ended, 30)
        await client.close()
    elif role.endswith("inbox"):
        routing = runtime.store(RoutingService)
        await routing.send(f"k{number % 7}", b"x")

        async def handled() -> bool:
            return (await routing.lengths()).keys_with_mail == 0

        await eventually(handled, 30)


async def _settle(here: Runtime) -> None:
    """What the next process of each role does: archive, sweep."""
    await _restarted(here, "angarium.transactions.archiver", 0)

    async def archived() -> bool:
        await _restarted(here, "angarium.transactions.archiver", 0)
        client = TransactionsService(here)
        return (await client.health_report(1)).to_archive == 0

    await eventually(archived, 120)
    await here.store(RoutingService).prune()


async def _lasting(here: Runtime) -> dict[str, int]:
    """The census when what ends within seconds has ended: a lock that its holder did not give back,
    because it was asked to stop while it took it."""

    async def no_lock() -> bool:
        name = here.keyspace.name(LEADER_LOCK)
        return int(await here.redis.call("EXISTS", name, key=name)) == 0

    await eventually(no_lock, 30)
    return await census(here)


ROLES = tuple(role.path for module in MODULES if module.name != "lake" for role in module.roles)


async def test_restarts_of_every_role_leave_nothing_behind(redis_url: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "home": tmp_path,
        "routing": {"inbound": INBOUND},
        "dispatch": {"ack_port": 0},
        "pickup": {"port": 0},
        "transactions": {"delay_before_archiving": 0},
    }
    async with sample_runtime(redis_url, **given) as here:
        await here.store(PipelineStore).put(pipeline_of({"name": "p", "steps": [{"type": "work"}]}))
        sizes: list[dict[str, int]] = []
        began_s = time.monotonic()
        for number in range(1, RESTARTS + 1):
            for role in ROLES:
                await _restarted(here, role, number)
            if number % 100 == 0:
                print(f"{number * len(ROLES):,} starts after {time.monotonic() - began_s:.0f} s")
            if number in (FIRST, RESTARTS):
                await _settle(here)
                sizes.append(await _lasting(here))
        took_s = time.monotonic() - began_s
        print(
            f"\n{RESTARTS:,} restarts of each of {len(ROLES)} roles in {took_s:.0f} s: "
            f"{len(sizes[0])} keys with {sum(sizes[0].values())} entries after {FIRST}, "
            f"{len(sizes[1])} with {sum(sizes[1].values())} at the end: {sizes[1]}"
        )
        assert sizes[1] == sizes[0]
