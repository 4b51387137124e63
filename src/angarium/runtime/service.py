"""The life of everything that runs: `start`, `quiet`, `stop`, and loops that outlive faults.

A service is ready when `start` returns, takes no new work after `quiet`, and is gone when
`stop` returns, which is never later than its deadline. All hooks of a life and all its tasks
belong to one owner task, because a task group has to be entered and left by the same task; the
callers of `start`, `quiet` and `stop` only ask and wait. So a caller that is cancelled, or a
second caller with less patience, can't tear a life in half. A service may be started again once
it is gone. A pass that raises is logged, counted and tried again after a back-off: the process
lives on. Nothing here knows Redis, sockets or modules.

    start()                       quiet()              stop(deadline_s)
      on_start, loops begin         loops end            on_stop, tasks cancelled, on_close
    STARTING ───────────► READY ───────────► QUIET ───────────► STOPPING ──► gone
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

# Work gets most of a stop's deadline; the rest is for cancelled tasks to unwind and for
# connections to close. A fifth, but never more than a second: unwinding does no new work.
UNWIND_SHARE = 0.2
UNWIND_S_MAX = 1.0

# A task that ran this long before it failed was healthy: its next fault starts from a short
# back-off again.
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


class _Life:
    """One run of a service, from `start` until it is gone."""

    owner: asyncio.Task[None]
    group: asyncio.TaskGroup

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.settled = asyncio.Event()  # the start succeeded, or failed and was cleaned up
        self.failure: Exception | None = None
        self.quiet_asked = asyncio.Event()
        self.quieted = asyncio.Event()
        self.stop_asked = asyncio.Event()
        self.cut = False
        self.supervised: list[SupervisedTask] = []

    def cut_short(self) -> None:
        # Once only: a second cancellation would also cut `on_close`, which gives things back.
        if not self.cut:
            self.cut = True
            self.owner.cancel()

    def still_running(self) -> list[str]:
        return [each.name for each in self.supervised if not each.task.done()]


class Service:
    """Base of all roles. Subclasses fill in the four `on_…` hooks and leave the verbs alone."""

    def __init__(self, name: str, *, clock: Clock | None = None) -> None:
        self.name = name
        self.ports: dict[str, int] = {}
        self.clock: Clock = clock or SystemClock()
        self.log = log.logger("angarium.service", service=name)
        self._life: _Life | None = None

    async def on_start(self) -> None:
        """Open what the service needs, fill in `ports`, begin loops; ready on return."""

    async def on_quiet(self) -> None:
        """Take no new work. Loops that end on quiet have already been told."""

    async def on_stop(self) -> None:
        """Finish or hand back what is in hand, while connections are still open."""
        await self.passes_ended()

    async def on_close(self) -> None:
        """Release what `on_start` took, even if it failed half-way."""

    @property
    def ready(self) -> bool:
        return self._life is not None and self._life.phase is Phase.READY

    @property
    def stopped(self) -> bool:
        """Nothing of it runs: never started, failed to start, or gone."""
        return self._life is None

    @final
    async def start(self) -> None:
        """Returns when ready. A failed start has released everything before it raises."""
        while self._life is not None and self._life.phase is Phase.STOPPING:
            await asyncio.wait({self._life.owner})
        life, ours = self._life, self._life is None
        if life is None:
            life = self._begin()
        elif life.phase is Phase.QUIET:
            raise AngariumError(f"service {self.name!r} is quiet; stop it before starting again")
        try:
            await life.settled.wait()
        except asyncio.CancelledError:
            if ours:
                life.cut_short()
                await asyncio.wait({life.owner})
            raise
        if life.failure is not None:
            raise life.failure

    @final
    async def quiet(self) -> None:
        """Take no new work; returns when that is so. Without a life there is nothing to do."""
        life = self._life
        if life is None:
            return
        life.quiet_asked.set()
        async with asyncio.TaskGroup() as group:
            quieted = group.create_task(life.quieted.wait())
            # A life that is cut short never reaches its quiet phase.
            await asyncio.wait({quieted, life.owner}, return_when=asyncio.FIRST_COMPLETED)
            quieted.cancel()

    @final
    async def stop(self, deadline_s: float) -> None:
        """Finish or hand back, then cancel what remains; never longer than `deadline_s`.

        `stop(0)` cancels and does not wait. A second stop with less patience shortens the
        first. Being cancelled here means that patience has ended altogether.
        """
        life = self._life
        if life is None:
            return
        unwind_s = min(UNWIND_S_MAX, deadline_s * UNWIND_SHARE)
        if life.phase is Phase.STARTING:
            life.phase = Phase.STOPPING
            life.cut_short()  # nothing has been taken on, so there is nothing to finish
        life.quiet_asked.set()
        life.stop_asked.set()
        try:
            if await self._gone_within(life, deadline_s - unwind_s):
                return
            life.cut_short()
            if await self._gone_within(life, unwind_s):
                return
        except asyncio.CancelledError:
            life.cut_short()
            raise
        if deadline_s > 0:
            self.log.error("stop_overdue", deadline_s=deadline_s, running=life.still_running())

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
        """Run `run_once` again and again, `interval_s` after the last pass ended.

        A result with a true attribute `again` asks for the next pass at once. The loop takes
        work and so ends with `quiet`; one that work in hand depends on, such as the renewal of
        a lease, says `until="stop"` and runs until `on_stop` has returned.
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
        """Keep `run` going: if it ends before `quiet`, it is started again after a back-off."""
        return self._supervise(RestartingTask(self, name, run, backoff or Backoff()))

    @final
    async def passes_ended(self) -> None:
        """Wait until every loop that ends on quiet has ended the pass it was in."""
        assert self._life is not None
        loops = [each for each in self._life.supervised if isinstance(each, Loop)]
        ending = {each.task for each in loops if each.ends_on_quiet}
        if ending:
            await asyncio.wait(ending)

    def _supervise(self, supervised: SupervisedTask) -> asyncio.Task[None]:
        life = self._life
        if life is None or life.phase is Phase.STOPPING:
            raise AngariumError(f"service {self.name!r} does not run; {supervised.name!r} refused")
        task = life.group.create_task(supervised.run(), name=f"{self.name}.{supervised.name}")
        supervised.task = task
        life.supervised.append(supervised)
        task.add_done_callback(lambda _: life.supervised.remove(supervised))
        return task

    def _taking_work(self) -> bool:
        return self._life is not None and self._life.phase in (Phase.STARTING, Phase.READY)

    def _begin(self) -> _Life:
        life = self._life = _Life()
        # The one task outside any group: it owns the group, and has to outlive this call.
        life.owner = asyncio.create_task(self._own(life), name=f"{self.name}.owner")
        # A task cancelled before its first step runs none of its code, not even `finally`.
        life.owner.add_done_callback(lambda _: self._end(life))
        return life

    async def _own(self, life: _Life) -> None:
        try:
            async with asyncio.TaskGroup() as life.group:
                try:
                    await self._live(life)
                finally:
                    life.phase = Phase.STOPPING
                    for each in life.supervised:
                        each.task.cancel()
        finally:
            life.phase = Phase.STOPPING
            try:
                await self._hook(self.on_close)
            finally:
                self._end(life)

    async def _live(self, life: _Life) -> None:
        try:
            await self.on_start()
        except Exception as error:
            life.failure = error
            return
        if life.cut:
            return  # `on_start` swallowed its cancellation
        life.phase = Phase.READY
        life.settled.set()
        await life.quiet_asked.wait()
        life.phase = Phase.QUIET
        for each in life.supervised:
            if each.ends_on_quiet:
                each.nudge()
        await self._hook(self.on_quiet)
        life.quieted.set()
        await life.stop_asked.wait()
        life.phase = Phase.STOPPING
        await self._hook(self.on_stop)

    async def _hook(self, hook: Callable[[], Awaitable[None]]) -> None:
        # A fault on the way out must not keep the rest from being given back.
        try:
            await hook()
        except Exception as error:
            self.log.error("hook_failed", hook=hook.__name__, error=repr(error), exc_info=error)

    def _end(self, life: _Life) -> None:
        if self._life is not life:
            return
        if not life.settled.is_set() and life.failure is None:
            life.failure = AngariumError(f"service {self.name!r} was stopped while it started")
        self.ports = {}
        self._life = None
        life.settled.set()

    async def _gone_within(self, life: _Life, seconds: float) -> bool:
        if seconds > 0 and not life.owner.done():
            async with asyncio.TaskGroup() as group:
                timer = group.create_task(self.clock.sleep(seconds))
                await asyncio.wait({life.owner, timer}, return_when=asyncio.FIRST_COMPLETED)
                timer.cancel()
        return life.owner.done()


class SupervisedTask(abc.ABC):
    """A task of a service that is started again after a fault, and counts its faults."""

    task: asyncio.Task[None]

    def __init__(self, service: Service, name: str, backoff: Backoff, ends_on_quiet: bool) -> None:
        self.name = name
        self.ends_on_quiet = ends_on_quiet
        self._service = service
        self._backoff = backoff
        self._pausing: asyncio.Task[None] | None = None

    @abc.abstractmethod
    async def run(self) -> None:
        """Until the service no longer takes work, or is cancelled."""

    def nudge(self) -> None:
        """End the pause, if there is one."""
        if self._pausing is not None:
            self._pausing.cancel()

    async def _attempt(
        self, run: Callable[[], Awaitable[object]]
    ) -> tuple[object, BaseException | None]:
        """What `run` returned, or the fault it ended with."""
        try:
            return await run(), None
        except asyncio.CancelledError as error:
            # Ours only if this task was asked to end. Otherwise the pass awaited something
            # that another one cancelled: a fault like any other, or the loop would die of it.
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
        if self._ended():
            return
        async with asyncio.TaskGroup() as group:
            self._pausing = group.create_task(self._service.clock.sleep(seconds))
            try:
                await asyncio.wait({self._pausing})
            finally:
                self._pausing = None

    def _ended(self) -> bool:
        return self.ends_on_quiet and not self._service._taking_work()


class Loop(SupervisedTask):
    """One pass at a time. `wake` is the hint that there is work; the interval is the truth."""

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
        """Run the next pass now, or right after this one; a back-off is not cut short."""
        self._woken = True
        if self._idle:
            self.nudge()

    async def run(self) -> None:
        while not self._ended():
            self._woken = False
            result, error = await self._attempt(self._run_once)
            if error is not None:
                await self._failed(error)
                continue
            self._backoff.reset()
            if self._woken or getattr(result, "again", False):
                await asyncio.sleep(0)  # a loop that never runs dry still lets others run
                continue
            self._idle = True
            try:
                await self._pause(self._interval_s)
            finally:
                self._idle = False


class RestartingTask(SupervisedTask):
    """A task that must not end while the service takes work."""

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
        while not self._ended():
            began_s = clock.monotonic()
            _, error = await self._attempt(self._run)
            if error is None and self._ended():
                return
            if clock.monotonic() - began_s >= HEALTHY_S:
                self._backoff.reset()
            await self._failed(error)
