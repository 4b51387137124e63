"""The role `inbox` with functions as users write them."""

from __future__ import annotations

import asyncio
import threading

from angarium.routing import keys
from angarium.routing.inbox import Inbox
from angarium.routing.items import InboundMessage
from angarium.routing.service import RoutingService
from angarium.runtime.application import Application
from angarium.runtime.runtime import Runtime
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime
from tests.routing.test_consumer import DEADLINE_S, settled


async def _run(runtime: Runtime, app: Application, *payloads: bytes) -> Inbox:
    inbox = Inbox(runtime, app)
    await inbox.start()
    for payload in payloads:
        await runtime.store(RoutingService).send("k", payload)
    return inbox


async def test_a_plain_function_past_its_time_out_ends_before_the_next_attempt(
    redis_url: str,
) -> None:
    app, go, calls, together = Application(), threading.Event(), list[bytes](), list[int]()
    running = threading.Semaphore(100)

    @app.inbox(retries=1, timeout_s=0.05)
    def handle(message: InboundMessage) -> None:
        running.acquire()
        calls.append(message.payload)
        together.append(100 - running._value)
        go.wait(DEADLINE_S)
        running.release()

    async with sample_runtime(redis_url) as runtime:
        inbox = await _run(runtime, app, b"1", b"2")
        await eventually(lambda: calls == [b"1"], DEADLINE_S)
        asyncio.get_running_loop().call_later(0.2, go.set)
        await eventually(lambda: settled(runtime), DEADLINE_S)
        await inbox.stop(10)
        assert calls[0] == b"1"
        assert calls[-1] == b"2"
        assert max(together) == 1


async def test_a_function_that_exits_fails_its_attempt_and_not_the_process(redis_url: str) -> None:
    app = Application()

    @app.inbox(retries=0)
    async def handle(message: InboundMessage) -> None:
        raise SystemExit(3)

    async with sample_runtime(redis_url) as runtime:
        inbox = await _run(runtime, app, b"1", b"2")
        await eventually(lambda: settled(runtime), DEADLINE_S)
        assert inbox.ready
        await inbox.stop(10)
        page = await runtime.store(RoutingService).dead_inbound.page()
        assert ["SystemExit(3)" in each.reason for each in page.letters] == [True, True]


async def test_a_restart_under_its_uid_is_the_same_instance(redis_url: str) -> None:
    app = Application()

    @app.inbox()
    async def handle(message: InboundMessage) -> None: ...

    async with sample_runtime(redis_url, routing={"inbox_uid": "blue"}) as runtime:
        for _ in range(3):
            inbox = await _run(runtime, app, b"1")
            assert inbox.uid == "blue"
            await eventually(lambda: settled(runtime), DEADLINE_S)
            await inbox.stop(10)
        name = runtime.keyspace.name(keys.UID_LAST_ACCESS)
        assert await runtime.redis.call("HKEYS", name, key=name) == [b"blue"]
