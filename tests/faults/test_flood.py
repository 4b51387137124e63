"""One client floods a port while ten honest ones use it: all that they ask is answered.

Ports: the HTTP API, its /metrics, the gateway's WebSocket, the ACK port of a dispatcher, the port
of a worker. The flood runs in a process of its own. Conversations have no port but the API's.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest

from angarium.dispatch.frames import encode_acknowledgements
from angarium.pickup.client import PickupClient
from tests.dispatch.processes import APP
from tests.faults.profile import rounds
from tests.kit.roles import RoleProcess
from tests.kit.sample import sample_settings

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
SECONDS, HONEST, PAUSE_S, PATIENCE_S = rounds(4, 30), 10, 0.05, 30.0
ROLES = {"api": "api", "metrics": "api", "gateway": "gateway", "ack": "dispatcher"}
Ask = Callable[[], Awaitable[object]]


async def asking(kind: str, port: int, stack: AsyncExitStack) -> Ask:
    """What one honest client does again and again."""
    if kind == "gateway":
        client = await stack.enter_async_context(PickupClient(f"ws://127.0.0.1:{port}/"))
        return client.ping
    if kind in ("api", "metrics"):
        session = await stack.enter_async_context(aiohttp.ClientSession())
        path = "/metrics" if kind == "metrics" else "/v1/dispatch"

        async def get() -> None:
            async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                assert answer.status == 200
                await answer.read()

        return get

    async def dial() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            if kind == "ack":  # of an unknown message: the answer is a NACK
                writer.write(encode_acknowledgements([str(uuid4()).encode()]))
            assert len(await reader.readexactly(6)) == 6
        finally:
            writer.transport.abort()

    return dial


class Answers:
    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.errors: list[str] = []

    async def collect(self, ask: Ask, until_s: float) -> None:
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await ask()
                self.times_s.append(time.monotonic() - began_s)
            except Exception as error:
                self.errors.append(repr(error))
            await asyncio.sleep(PAUSE_S)

    def __str__(self) -> str:
        hundredths = statistics.quantiles(self.times_s, n=100)
        return (
            f"{len(self.times_s)} answers, p50 {hundredths[49] * 1000:.0f} ms, "
            f"p99 {hundredths[98] * 1000:.0f} ms, {len(self.errors)} errors"
        )


async def measured(kind: str, port: int) -> Answers:
    answers = Answers()
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        until_s = time.monotonic() + SECONDS
        for _ in range(HONEST):
            ask = await asking(kind, port, stack)
            group.create_task(answers.collect(ask, until_s))
        await asyncio.sleep(max(0.0, until_s - time.monotonic()))
    return answers


@pytest.mark.parametrize("kind", ["api", "metrics", "gateway", "ack", "worker"])
async def test_ten_clients_are_served_while_another_floods_their_port(
    redis_url: str, tmp_path: Path, kind: str
) -> None:
    settings = sample_settings(redis_url)
    env = {
        "ANGARIUM_REDIS_URL": redis_url,
        "ANGARIUM_PREFIX": settings.prefix,
        "ANGARIUM_HOME": str(tmp_path),
    }
    args = ["serve", "worker", "--app", APP] if kind == "worker" else ["serve", ROLES[kind]]
    async with RoleProcess(args, env) as role:
        name = {"api": "http", "metrics": "http"}.get(kind, kind)
        port = role.ports[name]
        before = await measured(kind, port)
        flood = ["-m", "tests.faults.flood_client", kind, str(port), str(SECONDS + 2)]
        async with RoleProcess(flood, ready_lines=0) as flooding:
            during = await measured(kind, port)
            await asyncio.to_thread(flooding.wait, 60.0)
            print(f"\n{kind}: alone {before}; flooded {during}; flood {flooding.lines()[-1]}")
        peak = re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{role.pid}/status").read_text())
        print(f"{kind}: peak of the process {int(peak[1]) >> 10 if peak else 0} MiB")
        assert not before.errors
        assert not during.errors, during.errors[:3]
        after = await measured_once(kind, port)
        assert after


async def measured_once(kind: str, port: int) -> bool:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        await (await asking(kind, port, stack))()
    return True
