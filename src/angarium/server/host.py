"""Runs services in a process: starts them in order, announces each, stops them in reverse.

Each ready service prints one JSON line on stdout, `{"role":…,"ready":true,"ports":{…}}`; logs go to
stderr. The first SIGTERM or SIGINT quiets every service, then stops them within the deadline, with
exit code 0. The second signal cancels the rest. If a start fails, the started services are stopped
and the error is raised. A process that still runs after its deadline ends itself. `app.py` chooses
the services.
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

# Container runtimes kill a process after 10 s by default; stop before that.
STOP_DEADLINE_S = 8.0
# Shares of the deadline: for quieting all services, and for closing the runtime.
QUIET_SHARE = 0.25
CLOSE_SHARE = 0.1
# After a second signal: enough to unwind cancelled tasks.
CANCEL_S = 1.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)
# New objects between two garbage collections. A thousand running transactions with their tasks are
# several times the default of 700; each collection would visit all of them without freeing any.
GARBAGE_OBJECTS = 20_000

# Entered when the host runs, left when all services have stopped. For a plain list use
# `contextlib.nullcontext(services)`.
Composition = AbstractAsyncContextManager[Sequence[Service]]


class Host:
    """Runs one composition; use it once."""

    def __init__(
        self,
        composition: Composition,
        *,
        deadline_s: float = STOP_DEADLINE_S,
        on_ready: Callable[[Sequence[Service]], None] | None = None,
        on_stop_requested: Callable[[], None] | None = None,
    ) -> None:
        self._composition = composition
        self._deadline_s = deadline_s
        self._on_ready = on_ready
        self._on_stop_requested = on_stop_requested
        self._stop_requested = asyncio.Event()
        self._cancel_requested = asyncio.Event()
        self._exit_code = 0
        self._starting: asyncio.Task[int] | None = None
        self._log = log.logger("angarium.host")

    async def run(self) -> int:
        """Returns the exit code. A failed start raises an AngariumError."""
        with self._listening_to_signals():
            self._starting = asyncio.current_task()
            try:
                async with self._composition as services:
                    try:
                        await self._start(services)
                        await self._stop_requested.wait()
                    finally:
                        await self._stop(services)
            except asyncio.CancelledError:
                if not self._stop_requested.is_set():
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
            cancelling = group.create_task(self._cancel_requested.wait())
            await asyncio.wait({stopping, cancelling}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            cancelling.cancel()
        if self._cancel_requested.is_set():
            for service in services:
                await service.stop(0)
            async with asyncio.TaskGroup() as group:
                for service in services:
                    group.create_task(service.stop(CANCEL_S))

    async def _stop_in_turn(self, services: Sequence[Service]) -> None:
        """Stop in reverse order. Each service gets an equal share of the remaining time."""
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
        if self._stop_requested.is_set():
            self._log.warning("stopping_at_once", signal=number.name)
            self._exit_code = 128 + number
            self._cancel_requested.set()
            return
        self._log.info("stopping", signal=number.name, deadline_s=self._deadline_s)
        self._stop_requested.set()
        if self._on_stop_requested is not None:
            self._on_stop_requested()
        if self._starting is not None:
            self._starting.cancel()


def run(
    composition: Composition,
    *,
    deadline_s: float = STOP_DEADLINE_S,
    on_ready: Callable[[Sequence[Service]], None] | None = None,
) -> int:
    """Run the composition as this process, on uvloop. The process ends by the deadline."""
    import uvloop

    def ready(services: Sequence[Service]) -> None:
        _reduce_garbage_collection()
        if on_ready is not None:
            on_ready(services)

    host = Host(
        composition,
        deadline_s=deadline_s,
        on_ready=ready,
        on_stop_requested=lambda: _end_process_after(deadline_s),
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(host.run())


def _reduce_garbage_collection() -> None:
    """Exclude loaded objects from garbage collection, and collect less often.

    Reference counts free nearly all objects; the collector took a quarter of a busy node's CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, 10, 10)


def announce(service: Service) -> None:
    """Print the readiness line. A closed stdout does not stop the service."""
    line = {"role": service.name, "ready": True, "ports": service.ports}
    try:
        sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
        sys.stdout.flush()
    except OSError:
        # The rest of the buffer would fail again at exit and change the exit code.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _end_process_after(deadline_s: float) -> None:
    """Uses a thread: a blocked loop runs no timer."""

    def end() -> NoReturn:
        line = f"angarium: still running {deadline_s:g} s after the signal; ending the process\n"
        with contextlib.suppress(OSError):
            os.write(2, line.encode())
        os._exit(1)

    timer = threading.Timer(deadline_s, end)
    timer.daemon = True
    timer.start()
