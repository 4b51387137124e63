"""Dispatchers and workers as services of this process, on a real Redis and real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from angarium.dispatch import dispatcher, worker
from angarium.dispatch.dispatcher import Dispatcher
from angarium.dispatch.store import DispatchStore
from angarium.dispatch.worker import Worker
from angarium.runtime.application import Angarium
from angarium.runtime.runtime import Runtime
from angarium.runtime.settings import Settings
from tests.kit.eventually import eventually
from tests.kit.sample import sample_settings

Handle = Callable[[Any], Any]


async def echo(message: dict[str, Any]) -> dict[str, Any]:
    return message


class Hall:
    """Each service has a runtime of its own, as each process would."""

    def __init__(self, settings: Settings, runtime: Runtime, stack: AsyncExitStack) -> None:
        self.settings = settings
        self.runtime = runtime
        self.store = DispatchStore(runtime)
        self._stack = stack

    async def add_dispatcher(self, **dispatch: Any) -> Dispatcher:
        settings = self._with(**dispatch)
        app = Angarium()
        dispatcher.check(settings, app)
        runtime = await self._stack.enter_async_context(Runtime.open(settings))
        service = dispatcher.build(runtime, app)
        assert isinstance(service, Dispatcher)
        await self._run(service)
        return service

    async def add_worker(
        self,
        handle: Handle = echo,
        *,
        options: dict[str, Any] | None = None,
        **dispatch: Any,
    ) -> Worker:
        settings = self._with(**dispatch)
        app = Angarium()
        app.worker(**(options or {}))(handle)
        worker.check(settings, app)
        runtime = await self._stack.enter_async_context(Runtime.open(settings))
        service = worker.build(runtime, app)
        assert isinstance(service, Worker)
        await self._run(service)
        return service

    async def publish(self, *payloads: bytes) -> None:
        for payload in payloads:
            await self.store.publish(payload)

    async def results(self) -> list[dict[str, str]]:
        found = []
        for partition in range(self.store.partitions):
            name = self.store.stream_name(partition)
            for _, values in await self.runtime.redis.call("XRANGE", name, "-", "+", key=name):
                pairs = zip(values[::2], values[1::2], strict=True)
                found.append({key.decode(): value.decode() for key, value in pairs})
        return found

    async def processed(self, count: int) -> list[dict[str, str]]:
        """Wait until `count` results are there and nothing is pending."""

        async def done() -> bool:
            return len(await self.results()) >= count and await self.pending() == 0

        await eventually(done, deadline_s=60)
        return await self.results()

    async def pending(self) -> int:
        partitions = range(self.store.partitions)
        return sum([await self.store.pending_count(partition) for partition in partitions])

    async def dead(self) -> int:
        partitions = range(self.store.partitions)
        return sum([(await self.store.status(partition)).dead for partition in partitions])

    async def result_count(self) -> int:
        return len(await self.results())

    async def until(self, condition: Callable[[], bool | Awaitable[bool]]) -> None:
        async def look() -> bool:
            answer = condition()
            return await answer if isinstance(answer, Awaitable) else answer

        await eventually(look, deadline_s=60)

    def _with(self, **dispatch: Any) -> Settings:
        group = self.settings.dispatch.model_copy(update=dispatch)
        return self.settings.model_copy(update={"dispatch": group})

    async def _run(self, service: Dispatcher | Worker) -> None:
        await service.start()
        self._stack.push_async_callback(service.stop, 5.0)


@asynccontextmanager
async def hall(
    redis_url: str, *, partitions: int | None = None, **dispatch: Any
) -> AsyncIterator[Hall]:
    given = {"ack_port": 0, "lock_ms": 500, "ack_timeout_ms": 500, **dispatch}
    overrides = {} if partitions is None else {"partitions": partitions}
    settings = sample_settings(redis_url, dispatch=given, **overrides)
    async with Runtime.open(settings) as runtime, AsyncExitStack() as stack:
        yield Hall(settings, runtime, stack)


class RawWorker:
    """A worker of another make: plain sockets, and only what the test tells it to send."""

    def __init__(self, *, reads: bool = True) -> None:
        self.received = bytearray()
        self.connections = 0
        self._reads = reads
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self.address = ""

    async def __aenter__(self) -> RawWorker:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()
        if self._server is not None:
            self._server.close()

    def send(self, data: bytes) -> None:
        self._writers[-1].write(data)

    def hang_up(self) -> None:
        self._writers[-1].close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        while self._reads:
            data = await reader.read(65536)
            if not data:
                return
            self.received += data
        await asyncio.Event().wait()
