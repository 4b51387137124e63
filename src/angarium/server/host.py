"""Services as a process: started in order, announced one by one, stopped in reverse.

Each service that is ready prints one JSON line on stdout, `{"role":…,"ready":true,"ports":{…}}`;
all else goes to stderr. The first SIGTERM or SIGINT quiets every service, then stops them within
the deadline, with exit code 0. The second one cancels what is left. A start that fails stops what
had started and raises; a process that is still there when its deadline has passed, for whatever
reason, ends itself. Which services there are is not known here: see `app.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NoReturn

from angarium.runtime import log
from angarium.runtime.errors import AngariumError
from angarium.runtime.service import Service

# Container runtimes kill after 10 s unless told otherwise; we are gone before that.
STOP_DEADLINE_S = 8.0
# Of the deadline: for all services to turn quiet, and for what they stand on to close.
QUIET_SHARE = 0.25
CLOSE_SHARE = 0.1
# After a second signal: enough to unwind cancelled tasks, too short to be waited for.
HURRY_S = 1.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)
# New objects between two looks for cycles. What is in hand at one time, a thousand transactions
# with their tasks, is several times the usual 700: each look would walk all of it, for nothing.
GARBAGE_OBJECTS = 20_000

# Entered when the host runs, left when all services have stopped. A list that needs nothing
# around it is given as `contextlib.nullcontext(services)`.
Composition = AbstractAsyncContextManager[Sequence[Service]]


class Host:
    """Runs one composition, once."""

    def __init__(
        self,
        composition: Composition,
        *,
        deadline_s: float = STOP_DEADLINE_S,
        on_ready: Callable[[Sequence[Service]], None] | None = None,
        on_asked: Callable[[], None] | None = None,
    ) -> None:
        self._composition = composition
        self._deadline_s = deadline_s
        self._on_ready = on_ready
        self._on_asked = on_asked
        self._asked = asyncio.Event()
        self._hurry = asyncio.Event()
        self._exit_code = 0
        self._starting: asyncio.Task[int] | None = None
        self._log = log.logger("angarium.host")

    async def run(self) -> int:
        """The exit code. A failed start raises what it failed of, as an AngariumError."""
        with self._listening_to_signals():
            self._starting = asyncio.current_task()
            try:
                async with self._composition as services:
                    try:
                        await self._start(services)
                        await self._asked.wait()
                    finally:
                        await self._stop(services)
            except asyncio.CancelledError:
                if not self._asked.is_set():
                    raise
        return self._exit_code

    async def _start(self, services: Sequence[Service]) -> None:
        for service in services:
            try:
                await service.start()
            except AngariumError:
                raise
            except Exception as error:
                problem = f"role {service.name!r} did not start: {type(error).__name__}: {error}"
                raise AngariumError(problem) from error
            announce(service)
        self._starting = None
        if self._on_ready is not None:
            self._on_ready(services)

    async def _stop(self, services: Sequence[Service]) -> None:
        self._starting = None
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(self._stop_in_turn(services))
            hurrying = group.create_task(self._hurry.wait())
            await asyncio.wait({stopping, hurrying}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            hurrying.cancel()
        if self._hurry.is_set():
            for service in services:
                await service.stop(0)
            async with asyncio.TaskGroup() as group:
                for service in services:
                    group.create_task(service.stop(HURRY_S))

    async def _stop_in_turn(self, services: Sequence[Service]) -> None:
        """Last started, first stopped. Each gets an equal share of the time that is left."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._deadline_s * (1 - CLOSE_SHARE)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._deadline_s * QUIET_SHARE):
                await self._quiet(services)
        for left in range(len(services), 0, -1):
            await services[left - 1].stop(max(0.0, end - loop.time()) / left)

    async def _quiet(self, services: Sequence[Service]) -> None:
        async with asyncio.TaskGroup() as group:
            for service in services:
                group.create_task(service.quiet())

    @contextlib.contextmanager
    def _listening_to_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def _signalled(self, number: signal.Signals) -> None:
        if self._asked.is_set():
            self._log.warning("stopping_at_once", signal=number.name)
            self._exit_code = 128 + number
            self._hurry.set()
            return
        self._log.info("stopping", signal=number.name, deadline_s=self._deadline_s)
        self._asked.set()
        if self._on_asked is not None:
            self._on_asked()
        if self._starting is not None:
            self._starting.cancel()


def run(
    composition: Composition,
    *,
    deadline_s: float = STOP_DEADLINE_S,
    on_ready: Callable[[Sequence[Service]], None] | None = None,
) -> int:
    """Be the process: uvloop, signals, and an end by the deadline whatever happens."""
    import uvloop

    def ready(services: Sequence[Service]) -> None:
        _spare_the_collector()
        if on_ready is not None:
            on_ready(services)

    host = Host(
        composition,
        deadline_s=deadline_s,
        on_ready=ready,
        on_asked=lambda: _end_process_after(deadline_s),
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(host.run())


def _spare_the_collector() -> None:
    """What was loaded stays for good and need not be looked at again; the rest, less often.

    Reference counts free nearly all that we make; the collector took a quarter of a busy node.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, 10, 10)


def announce(service: Service) -> None:
    """The readiness line. Nobody reading it is no reason to stop serving."""
    line = {"role": service.name, "ready": True, "ports": service.ports}
    try:
        sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
        sys.stdout.flush()
    except OSError:
        # What stays in the buffer would fail again at exit, and change the exit code.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _end_process_after(deadline_s: float) -> None:
    """A thread, because a blocked loop, or one that waits for a thread, runs no timer."""

    def end() -> NoReturn:
        line = f"angarium: not gone {deadline_s:g} s after the signal; ending the process\n"
        with contextlib.suppress(OSError):
            os.write(2, line.encode())
        os._exit(1)

    timer = threading.Timer(deadline_s, end)
    timer.daemon = True
    timer.start()
