"""Long polls on two API processes: before, during and after the end, each one is answered."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import pytest

from tests.faults.profile import rounds
from tests.kit.roles import RoleProcess
from tests.transactions.api_client import ApiClient, api_client
from tests.transactions.harness import harness

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]
ROUNDS = rounds(20, 300)


async def _polled(http: ApiClient, path: str) -> tuple[float, float, Any]:
    began_s = time.monotonic()
    _, body = await http.request("GET", path)
    return began_s, time.monotonic(), body


async def test_three_pollers_on_two_processes_before_during_and_after_the_end(
    redis_url: str,
) -> None:
    async with harness(redis_url) as here:
        env = {
            "ANGARIUM_REDIS_URL": redis_url,
            "ANGARIUM_PREFIX": here.runtime.settings.prefix,
            "ANGARIUM_HTTP__PORT": "0",
            # So long that an answer with the end is one that was woken by it.
            "ANGARIUM_TRANSACTIONS__LONGPOLL_TIMEOUT_MS": "120000",
        }
        waits_ms: list[float] = []
        async with (
            RoleProcess(["serve", "api"], env) as first,
            RoleProcess(["serve", "api"], env) as second,
            api_client(first.ports["http"]) as one,
            api_client(second.ports["http"]) as two,
        ):
            for number in range(ROUNDS):
                id = await here.start()
                path = f"/datp/1.0/tx/status/{id}?reply=longpoll"
                polls = [asyncio.ensure_future(_polled(http, path)) for http in (one, two, two)]
                await asyncio.sleep(0.002 * (number % 10))  # another interleaving each time
                (taken,) = await here.take()
                ending = asyncio.ensure_future(here.store.complete(taken, "success", b"1", ""))
                polls += [asyncio.ensure_future(_polled(http, path)) for http in (one, one, two)]
                assert await ending == "completed"
                ended_s = time.monotonic()
                polls += [asyncio.ensure_future(_polled(http, path)) for http in (one, two, two)]
                async with asyncio.timeout(60):
                    for began_s, answered_s, body in await asyncio.gather(*polls):
                        assert body["metadata"]["status"] == "success"
                        assert "notifiedTime" in body["metadata"]
                        waits_ms.append((answered_s - max(began_s, ended_s)) * 1000)
        print(
            f"\n{len(waits_ms)} polls of {ROUNDS} transactions on two processes answered, "
            f"median {statistics.median(waits_ms):.1f} ms, longest {max(waits_ms):.1f} ms after "
            "the end"
        )
