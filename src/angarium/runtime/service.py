"""Services: everything that runs has `start`, `quiet` and `stop`, and loops that survive errors.

`start` returns when the service is ready. After `quiet` the service takes no new work. `stop`
returns when the service has ended, and never later than its deadline. A service may be started
again after it has ended.

One owner task runs all hooks of a service and owns all its tasks, because the same task has to
enter and leave a task group. The callers of `start`, `quiet` and `stop` only send a request and
wait. So a caller that is cancelled, or a second caller with a shorter deadline, cannot interrupt a
hook half-way. If a pass of a loop raises, the error is logged and counted, and the pass is repeated
after a back-off; the process keeps running. This file uses neither Redis nor sockets nor modules.

    start()                       quiet()              stop(deadline_s)
      on_start, loops begin         loops end            on_stop, tasks cancelled, on_close
    STARTING ───────────► READY ───────────► QUIET ───────────► STOPPING ──► ended
"""

from __future__ import annotations

import abc
import asyncio
import enum
from collections.abc import Awaitable, Callable
from typing import Literal, final

from prometheus_client import Counter

from angarium.redis.backoff import Backoff
from angarium.runtime import log
from angarium.runtime.clock import Clock, SystemClock
from angarium.runtime.errors import AngariumError

# The part of a stop's deadline in which cancelled tasks unwind and connections close; work gets the
# rest. At most one second, because unwinding does no new work.
UNWIND_PART = 0.2
UNWIND_S_MAX = 1.0

# A task that ran this long before it failed was healthy: its back-off starts again from the
# shortest delay.
HEALTHY_S = 30.0

FAILURES = Counter(
    "angarium_supervised_failures",
    "Passes and tasks that ended with an error and were started again.",
    ["service", "task"],
)


class Phase(enum.Enum):
    STARTING = enum.auto()
    READY = enum.auto()
    QUIET = enum.auto()
    STOPPING = enum.auto()


class _RunState:
    """One run of a service, from `start` until it has ended."""

    owner: asyncio.Task[None]
    group: asyncio.TaskGroup

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.start_done = asyncio.Event()  # also set after a failed start was cleaned up
        self.start_error: Exception | None = None
        self.quiet_requested = asyncio.Event()
        self.quiet_done = asyncio.Event()
        self.stop_requested = asyncio.Event()
        self.cancelled = False
        self.supervised: list[SupervisedTask] = []

    def cancel(self) -> None:
        # Once only: a second cancellation would also interrupt `on_close`, which releases things.
        if not self.cancelled:
            self.cancelled = True
            self.owner.cancel()

    def still_running(self) -> list[str]:
        return [each.name for each in self.supervised if not each.task.done()]


class Service:
    """Base of all roles. Subclasses override the four `on_…` hooks and nothing else."""

    def __init__(self, name: str, *, clock: Clock | None = None) -> None:
        self.name = name
        self.ports: dict[str, int] = {}
        self.clock: Clock = clock or SystemClock()
        self.log = log.logger("angarium.service", service=name)
        self._run_state: _RunState | None = None

    async def on_start(self) -> None:
        """Open connections, set `ports`, begin loops. The service is ready when this returns."""

    async def on_quiet(self) -> None:
        """Take no new work. Loops that end on quiet begin no further pass."""

    async def on_stop(self) -> None:
        """Finish current work or give it back, while connections are still open."""
        await self.passes_ended()

    async def on_close(self) -> None:
        """Release what `on_start` opened, also after it failed half-way."""

    @property
    def ready(self) -> bool:
        return self._run_state is not None and self._run_state.phase is Phase.READY

    @property
    def stopped(self) -> bool:
        """Whether the service was never started, failed to start, or has ended."""
        return self._run_state is None

    @final
    async def start(self) -> None:
        """Returns when the service is ready. A failed start releases everything, then raises."""
        while self._run_state is not None and self._run_state.phase is Phase.STOPPING:
            await asyncio.wait({self._run_state.owner})
        state, ours = self._run_state, self._run_state is None
        if state is None:
            state = self._begin()
        elif state.phase is Phase.QUIET:
            raise AngariumError(f"service {self.name!r} is quiet; stop it before starting again")
        try:
            await state.start_done.wait()
        except asyncio.CancelledError:
            if ours:
                state.cancel()
                await asyncio.wait({state.owner})
            raise
        if state.start_error is not None:
            raise state.start_error

    @final
    async def quiet(self) -> None:
        """Returns when the service takes no new work. Does nothing if it is not running."""
        state = self._run_state
        if state is None:
            return
        state.quiet_requested.set()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(state.quiet_done.wait())
            # A run that is cancelled never reaches its quiet phase.
            await asyncio.wait({waiting, state.owner}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()

    @final
    async def stop(self, deadline_s: float) -> None:
        """Finish work or give it back, then cancel the rest; takes at most `deadline_s`.

        `stop(0)` cancels and does not wait. A second stop with a shorter deadline shortens the
        first. If the caller of `stop` is cancelled, the service is cancelled at once.
        """
        state = self._run_state
        if state is None:
            return
        unwind_s = min(UNWIND_S_MAX, deadline_s * UNWIND_PART)
        if state.phase is Phase.STARTING:
            state.phase = Phase.STOPPING
            state.cancel()  # the service has taken no work yet
        state.quiet_requested.set()
        state.stop_requested.set()
        try:
            if await self._ended_within(state, deadline_s - unwind_s):
                return
            state.cancel()
            if await self._ended_within(state, unwind_s):
                return
        except asyncio.CancelledError:
            state.cancel()
            raise
        if deadline_s > 0:
            self.log.error("stop_overdue", deadline_s=deadline_s, running=state.still_running())

    @final
    def loop(
        self,
        name: str,
        run_once: Callable[[], Awaitable[object]],
        interval_s: float,
        *,
        until: Literal["quiet", "stop"] = "quiet",
        backoff: Backoff | None = None,
    ) -> Loop:
        """Run `run_once` repeatedly, each time `interval_s` after the last pass ended.

        If the result has a true attribute `again`, the next pass follows at once. A loop that
        takes work ends with `quiet`. A loop that current work depends on, such as the renewal of a
        lease, has `until="stop"` and runs until `on_stop` has returned.
        """
        loop = Loop(self, name, run_once, interval_s, until == "stop", backoff or Backoff())
        self._supervise(loop)
        return loop

    @final
    def spawn(
        self,
        name: str,
        run: Callable[[], Awaitable[object]],
        *,
        backoff: Backoff | None = None,
    ) -> asyncio.Task[None]:
        """Run `run` in a task. If it ends before `quiet`, start it again after a back-off."""
        return self._supervise(RestartingTask(self, name, run, backoff or Backoff()))

    @final
    async def passes_ended(self) -> None:
        """Wait until every loop that ends on quiet has ended its last pass."""
        assert self._run_state is not None
        loops = [each for each in self._run_state.supervised if isinstance(each, Loop)]
        ending = {each.task for each in loops if each.ends_on_quiet}
        if ending:
            await asyncio.wait(ending)

    def _supervise(self, supervised: SupervisedTask) -> asyncio.Task[None]:
        state = self._run_state
        if state is None or state.phase is Phase.STOPPING:
            raise AngariumError(f"service {self.name!r} does not run; {supervised.name!r} refused")
        task = state.group.create_task(supervised.run(), name=f"{self.name}.{supervised.name}")
        supervised.task = task
        state.supervised.append(supervised)
        task.add_done_callback(lambda _: state.supervised.remove(supervised))
        return task

    def _taking_work(self) -> bool:
        return self._run_state is not None and self._run_state.phase in (
            Phase.STARTING,
            Phase.READY,
        )

    def _begin(self) -> _RunState:
        state = self._run_state = _RunState()
        # The only task outside a group: it owns the group and runs longer than this call.
        state.owner = asyncio.create_task(self._run_owner(state), name=f"{self.name}.owner")
        # A task that is cancelled before its first step runs none of its code, not even `finally`.
        state.owner.add_done_callback(lambda _: self._finish_run(state))
        return state

    async def _run_owner(self, state: _RunState) -> None:
        try:
            async with asyncio.TaskGroup() as state.group:
                try:
                    await self._run_phases(state)
                finally:
                    state.phase = Phase.STOPPING
                    for each in state.supervised:
                        each.task.cancel()
        finally:
            state.phase = Phase.STOPPING
            try:
                await self._hook(self.on_close)
            finally:
                self._finish_run(state)

    async def _run_phases(self, state: _RunState) -> None:
        try:
            await self.on_start()
        except Exception as error:
            state.start_error = error
            return
        if state.cancelled:
            return  # `on_start` swallowed its cancellation
        state.phase = Phase.READY
        state.start_done.set()
        await state.quiet_requested.wait()
        state.phase = Phase.QUIET
        for each in state.supervised:
            if each.ends_on_quiet:
                each.end_pause()
        await self._hook(self.on_quiet)
        state.quiet_done.set()
        await state.stop_requested.wait()
        state.phase = Phase.STOPPING
        await self._hook(self.on_stop)

    async def _hook(self, hook: Callable[[], Awaitable[None]]) -> None:
        # An error in one hook must not prevent the next hooks from releasing things.
        try:
            await hook()
        except Exception as error:
            self.log.error("hook_failed", hook=hook.__name__, error=repr(error), exc_info=error)

    def _finish_run(self, state: _RunState) -> None:
        if self._run_state is not state:
            return
        if not state.start_done.is_set() and state.start_error is None:
            state.start_error = AngariumError(f"service {self.name!r} was stopped while it started")
        self.ports = {}
        self._run_state = None
        state.start_done.set()

    async def _ended_within(self, state: _RunState, seconds: float) -> bool:
        if seconds > 0 and not state.owner.done():
            async with asyncio.TaskGroup() as group:
                timer = group.create_task(self.clock.sleep(seconds))
                await asyncio.wait({state.owner, timer}, return_when=asyncio.FIRST_COMPLETED)
                timer.cancel()
        return state.owner.done()


class SupervisedTask(abc.ABC):
    """A task of a service that is started again after an error, and counts its errors."""

    task: asyncio.Task[None]

    def __init__(self, service: Service, name: str, backoff: Backoff, ends_on_quiet: bool) -> None:
        self.name = name
        self.ends_on_quiet = ends_on_quiet
        self._service = service
        self._backoff = backoff
        self._pause_task: asyncio.Task[None] | None = None

    @abc.abstractmethod
    async def run(self) -> None:
        """Returns when the service no longer takes work."""

    def end_pause(self) -> None:
        if self._pause_task is not None:
            self._pause_task.cancel()

    async def _attempt(
        self, run: Callable[[], Awaitable[object]]
    ) -> tuple[object, BaseException | None]:
        """The result of `run`, or the error that ended it."""
        try:
            return await run(), None
        except asyncio.CancelledError as error:
            # If this task was not cancelled, the pass awaited something that another task
            # cancelled. That is an error of the pass; raising it would end the loop.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return None, error
        except Exception as error:
            return None, error

    async def _failed(self, error: BaseException | None) -> None:
        FAILURES.labels(self._service.name, self.name).inc()
        delay_s = self._backoff.next_delay_s()
        self._service.log.error(
            "task_failed" if error is not None else "task_ended",
            task=self.name,
            error=repr(error),
            attempt=self._backoff.attempt,
            retry_in_s=round(delay_s, 3),
            exc_info=error,
        )
        await self._pause(delay_s)

    async def _pause(self, seconds: float) -> None:
        if self._should_end():
            return
        async with asyncio.TaskGroup() as group:
            self._pause_task = group.create_task(self._service.clock.sleep(seconds))
            try:
                await asyncio.wait({self._pause_task})
            finally:
                self._pause_task = None

    def _should_end(self) -> bool:
        return self.ends_on_quiet and not self._service._taking_work()


class Loop(SupervisedTask):
    """Runs one pass at a time. `wake` is a hint that there is work; the interval finds all work."""

    def __init__(
        self,
        service: Service,
        name: str,
        run_once: Callable[[], Awaitable[object]],
        interval_s: float,
        through_quiet: bool,
        backoff: Backoff,
    ) -> None:
        super().__init__(service, name, backoff, ends_on_quiet=not through_quiet)
        self._run_once = run_once
        self._interval_s = interval_s
        self._woken = False
        self._idle = False

    def wake(self) -> None:
        """Run the next pass now, or right after the current one. A back-off is not shortened."""
        self._woken = True
        if self._idle:
            self.end_pause()

    async def run(self) -> None:
        while not self._should_end():
            self._woken = False
            result, error = await self._attempt(self._run_once)
            if error is not None:
                await self._failed(error)
                continue
            self._backoff.reset()
            if self._woken or getattr(result, "again", False):
                await asyncio.sleep(0)  # a loop that always has work still lets other tasks run
                continue
            self._idle = True
            try:
                await self._pause(self._interval_s)
            finally:
                self._idle = False


class RestartingTask(SupervisedTask):
    """A task that runs for as long as the service takes work."""

    def __init__(
        self,
        service: Service,
        name: str,
        run: Callable[[], Awaitable[object]],
        backoff: Backoff,
    ) -> None:
        super().__init__(service, name, backoff, ends_on_quiet=True)
        self._run = run

    async def run(self) -> None:
        clock = self._service.clock
        while not self._should_end():
            began_s = clock.monotonic()
            _, error = await self._attempt(self._run)
            if error is None and self._should_end():
                return
            if clock.monotonic() - began_s >= HEALTHY_S:
                self._backoff.reset()
            await self._failed(error)
