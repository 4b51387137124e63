"""One transaction through the steps of its pipeline, on one node.

A finished step is written down before the next begins, so that a crash repeats only the step it
hit. Whatever a step does (raise, hang, return nonsense) becomes a status of its transaction and
never a fault of the node. Redis going away is waited out; a run that is no longer ours is dropped.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from angarium.redis.backoff import Backoff
from angarium.runtime.application import Caller, Handler
from angarium.runtime.clock import Clock
from angarium.runtime.errors import (
    AngariumError,
    LimitExceeded,
    NotDurable,
    OutcomeUnknown,
    Overloaded,
    RedisUnavailable,
)
from angarium.runtime.limits import Limits
from angarium.runtime.log import logger
from angarium.runtime.text import valid_text
from angarium.runtime.trace import IN_HAND, InHand
from angarium.transactions.model import ChildResult, Frame, Status, Taken, check_name, depth_of
from angarium.transactions.pipeline import Pipeline, StepDefinition
from angarium.transactions.report import encode_report
from angarium.transactions.step import Outcome, Step, Verdict, awaitable_anywhere
from angarium.transactions.store import PipelineStore, TransactionStore

NOTE_CHARACTERS_MAX = 1_000
# Of plain functions that never returned; with more, the node's steps begin to wait for a thread.
LOST_THREADS_MAX = 256
# Later than any, but not never: a step that waits for its thread may be stopped.
NO_DEADLINE_S = 1e15
# Sent with each dequeue, so it should stay below a packet or two.
WHOLE_PIPELINES_MAX = 50
SLEEP_S_MAX = 10 * 365 * 86_400
# What Redis can say that goes away by itself; the outcome in hand is worth the wait.
PASSING = (RedisUnavailable, OutcomeUnknown, NotDurable, Overloaded)
NOT_OURS = frozenset({"no_state", "not_running", "stale_run"})

_decode = msgspec.json.decode
_encode = msgspec.json.Encoder().encode
_child_decoder = msgspec.json.Decoder(ChildResult)


class StepNonsense(Exception):
    """A step or its definition asks for something that can't be done."""


class StepStopped(Exception):
    """A step was told to end, and ended as if it had not heard: what it says comes too late."""


class RunLost(Exception):
    """Another run has the transaction, or it has ended: what we did since counts for nothing."""


class Ending(msgspec.Struct, frozen=True):
    """How a transaction ends, once that is written down."""

    status: Status
    output: bytes = b""
    note: str = ""


class Running(msgspec.Struct, eq=False):
    """A transaction in hand. `stopped` is why its task was cancelled, if we did it."""

    taken: Taken
    began_s: float
    deadline_s: float
    step_deadline_s: float = math.inf
    step: Step | None = None
    limit_ms: float = 0
    cancel: bool = False
    stopped: Status | None = None
    stopped_s: float = math.inf
    note: str = ""
    task: asyncio.Task[None] | None = None
    end: asyncio.Future[bytes] | None = None  # its step is over, and its end on the way to Redis

    @property
    def overdue(self) -> str:
        """Why it is stopped when its step takes too long; written only then."""
        assert self.step is not None
        return (
            f"step {self.step.index + 1} ({self.step.type}) took longer than {self.limit_ms:g} ms"
        )


@dataclass
class Tally:
    """What a node did, for its figures."""

    taken: int = 0
    refused: int = 0
    not_ours: int = 0  # they wait now for a node that has their step
    handed_over: int = 0
    steps: int = 0
    slept: int = 0
    recovered: int = 0
    returned: int = 0
    lost: int = 0
    ended: dict[str, int] = field(default_factory=dict)


class Pipelines:
    """Definitions by name and version; a version never changes, so one is read once."""

    def __init__(self, store: PipelineStore) -> None:
        self._store = store
        self._known: dict[tuple[str, str], Pipeline] = {}
        self._reading = asyncio.Lock()

    def known(self, name: str, version: str) -> Pipeline | None:
        return self._known.get((name, version))

    async def get(self, name: str, version: str) -> Pipeline:
        """PipelineUnknown or KeyError if it is not there."""
        async with self._reading:  # many ask at once for one that is new
            if (name, version) not in self._known:
                for number, pipeline in (await self._store.versions(name)).items():
                    self._known[name, str(number)] = pipeline
        return self._known[name, version]


class Runner:
    def __init__(
        self,
        store: TransactionStore,
        pipelines: Pipelines,
        handlers: Mapping[str, Handler],
        threads: int,
        clock: Clock,
        limits: Limits,
        step_timeout_ms: int,
    ) -> None:
        self._store = store
        self._pipelines = pipelines
        # With what is asked of each at every step: whether it is async, and its own time-out.
        self.whole_pipelines = ""
        self._handlers = {
            name: (each, each.is_async, each.options.get("timeout_s", 0) * 1000)
            for name, each in handlers.items()
        }
        self._threads = asyncio.Semaphore(threads)
        self._caller = Caller(threads + LOST_THREADS_MAX)
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._limits = limits
        self._step_timeout_ms = step_timeout_ms
        self._log = logger("angarium.node")
        self.tally = Tally()

    def close(self) -> None:
        self._caller.close()

    async def run(self, running: Running) -> Ending | None:
        """How it ended; None if it sleeps, or is no longer ours."""
        try:
            return await self._run(running)
        except (asyncio.CancelledError, StepStopped):
            task = asyncio.current_task()
            if running.stopped is None or task is None:
                raise  # the node stops, and gives it back
            task.uncancel()
            return Ending(running.stopped, b"", running.note)
        except RunLost:
            self.tally.lost += 1
            return None
        except Exception as error:
            # Ours, not the step's: without an end it would be taken and fail again for ever.
            self._log.error(
                "run_failed", transaction=running.taken.id, error=repr(error), exc_info=error
            )
            return Ending(Status.INTERNAL_ERROR, b"", type(error).__name__)

    def end_soon(self, running: Running, ending: Ending) -> asyncio.Future[bytes]:
        """With the next batch; whoever asks hears how it went, and may have to insist."""
        note = valid_text(ending.note)[:NOTE_CHARACTERS_MAX]
        return self._store.complete_soon(running.taken, ending.status.value, ending.output, note)

    def has_ended(self, ending: Ending, told: asyncio.Future[bytes]) -> bool:
        """False: not yet, for whatever reason."""
        if told.cancelled() or told.exception() is not None or told.result() != b"completed":
            return False
        self._count_end(ending)
        return True

    async def end(self, running: Running, ending: Ending) -> None:
        """Until it has ended, or is known to be no longer ours."""
        try:
            answer = await self._insist(lambda: self.end_soon(running, ending))
        except Exception as error:
            # It is in nobody's hands now, and comes back to a queue as an orphan does.
            self._log.error("end_failed", transaction=running.taken.id, error=repr(error))
            return
        if answer == b"completed":
            self._count_end(ending)
        else:
            self.tally.lost += 1

    def _count_end(self, ending: Ending) -> None:
        ended, status = self.tally.ended, ending.status.value
        ended[status] = ended.get(status, 0) + 1

    async def _run(self, running: Running) -> Ending | None:
        taken = running.taken
        if taken.cancel:
            return Ending(Status.CANCELLED)
        if taken.left_ms <= 0:
            return Ending(Status.TIMEOUT, b"", "the transaction took too long")
        name, version = taken.pipeline, taken.version
        pipeline = self._pipelines.known(name, version)
        if pipeline is None:
            try:
                pipeline = await self._insist(lambda: self._pipelines.get(name, version))
            except (AngariumError, KeyError):
                note = f"version {version} of pipeline {name} is gone"
                return Ending(Status.INTERNAL_ERROR, b"", note)
            self._learn(pipeline, version)
        frame = Frame.decode(taken.frame)
        data = frame.data or taken.data
        index, retry = frame.step, frame.retry
        if not self._has(pipeline.steps[index]):
            # The script that gave it to us could not read its definition.
            await self._hand_over(running, index, taken.frame, pipeline.steps[index])
            return None
        while True:
            definition = pipeline.steps[index]
            try:
                outcome = await self._outcome(running, definition, index, retry, data)
                if outcome is None:
                    return None  # its children run now
                output = self._output(outcome)
            except StepNonsense as error:
                return Ending(Status.INTERNAL_ERROR, b"", f"step {index + 1}: {error}")
            if outcome.verdict is Verdict.RETRY_LATER:
                await self._sleep(running, outcome, index, retry, data)
                return None
            if outcome.verdict is not Verdict.SUCCEEDED:
                return Ending(_ENDINGS[outcome.verdict], output, outcome.note)
            index, retry, data = index + 1, 0, output
            if index == len(pipeline.steps):
                return Ending(Status.SUCCESS, output, outcome.note)
            checkpoint = Frame(index, 0, data).encode()
            if not self._has(pipeline.steps[index]):
                await self._hand_over(running, index, checkpoint, pipeline.steps[index])
                return None
            await self._checkpoint(running, index, checkpoint)
            taken.children = ()

    def _learn(self, pipeline: Pipeline, version: str) -> None:
        """The next dequeue need not look at the steps of a pipeline that this node has whole. Only
        a saving, so a bounded number is kept: the ones learnt last."""
        words, name = self.whole_pipelines.split(), f"{pipeline.name}|{version}"
        if name not in words and all(map(self._has, pipeline.steps)):
            self.whole_pipelines = f" {' '.join([*words[1 - WHOLE_PIPELINES_MAX :], name])} "

    def _has(self, definition: StepDefinition) -> bool:
        return definition.type is None or definition.type in self._handlers

    # One step

    async def _outcome(
        self, running: Running, definition: StepDefinition, index: int, retry: int, data: bytes
    ) -> Outcome | None:
        if definition.pipeline is not None:
            return await self._children(running, definition, index, data)
        handler, is_async, own_ms = self._handlers[definition.type or ""]
        if running.cancel:
            running.stopped = Status.CANCELLED
            raise StepStopped
        step = self._step(running, definition, index, retry, data)
        limit_ms = definition.timeout_ms or own_ms or self._step_timeout_ms
        running.step, running.limit_ms = step, limit_ms
        self.tally.steps += 1
        # The trace goes on with whatever the step does.
        IN_HAND.set(InHand(running.taken.id.encode(), step.metadata))
        try:
            if is_async:
                running.step_deadline_s = self._clock.monotonic() + limit_ms / 1000
                result = await handler.function(step)
            else:
                result = await self._in_thread(running, handler, step, limit_ms)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise StepNonsense("it was cancelled by something it awaited") from None
        except RunLost:
            raise
        except Exception as error:
            self._log.warning(
                "step_raised", transaction=running.taken.id, step=definition.type,
                error=repr(error), exc_info=error,
            )  # fmt: skip
            raise StepNonsense(f"{type(error).__name__}: {error}") from None
        finally:
            running.step_deadline_s = math.inf
        if running.stopped is not None:
            raise StepStopped
        if isinstance(result, Outcome):
            return _sane(result)
        if result is None or isinstance(result, dict):
            return Outcome(Verdict.SUCCEEDED, result)
        raise StepNonsense(f"it returned {type(result).__name__}, not an outcome, a dict or None")

    def _step(
        self, running: Running, definition: StepDefinition, index: int, retry: int, data: bytes
    ) -> Step:
        taken = running.taken
        return Step(
            transaction_id=taken.id,
            pipeline=taken.pipeline,
            owner=taken.owner,
            external_id=taken.external_id or None,
            index=index,
            type=definition.type or "",
            parameters=definition.parameters,
            data=_decode(data),
            metadata=_decode(taken.metadata) if taken.metadata else None,
            switches=_decode(taken.switches) if taken.switches else {},
            retry=retry,
            report=partial(self._report, taken),
        )

    async def _in_thread(
        self, running: Running, handler: Handler, step: Step, limit_ms: float
    ) -> Any:
        """Its time begins with its thread; until then it may be stopped all the same. A thread that
        does not come back is written off, and another may take its place."""
        running.step_deadline_s = NO_DEADLINE_S
        async with self._threads:
            running.step_deadline_s = self._clock.monotonic() + limit_ms / 1000
            return await self._caller.call(handler, step)

    def _report(self, taken: Taken, progress: Any) -> Awaitable[None]:
        report, size_max = encode_report(progress), self._limits.transaction_data_bytes_max
        if len(report) > size_max:
            raise LimitExceeded("transaction_data_bytes_max", len(report), size_max)
        return awaitable_anywhere(self._send_report(taken, report), self._loop)

    async def _send_report(self, taken: Taken, report: bytes) -> None:
        status = await self._insist(
            lambda: self._store.report_progress(taken.id, taken.run, report)
        )
        if status in NOT_OURS:
            raise RunLost

    def _output(self, outcome: Outcome) -> bytes:
        try:
            output = b"" if outcome.output is None else _encode(outcome.output)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise StepNonsense(f"its output is not JSON: {error}") from None
        if outcome.verdict is Verdict.SUCCEEDED and not output:
            output = b"null"
        size_max = self._limits.transaction_data_bytes_max
        if len(output) > size_max:
            raise StepNonsense(f"its output of {len(output)} bytes is over {size_max}")
        return output

    # Children

    async def _children(
        self, running: Running, definition: StepDefinition, index: int, data: bytes
    ) -> Outcome | None:
        """None: they were started, and this transaction sleeps until they have ended."""
        taken, name = running.taken, definition.pipeline
        assert name is not None
        if taken.children:
            results = [_child_decoder.decode(each) for each in taken.children if each]
            return _gathered(results, definition, data)
        each_data = _parts_of(data, definition)
        if not each_data:
            return Outcome(Verdict.SUCCEEDED, _decode(data))
        if len(each_data) > self._limits.transaction_children_items_max:
            raise StepNonsense(f"{len(each_data)} children are too many")
        if depth_of(taken.id) >= self._limits.transaction_depth_items_max:
            raise StepNonsense("pipelines call pipelines too deeply")
        frame = Frame(index, 0, data if index else b"").encode()
        status = await self._insist(
            lambda: self._store.call_children(taken.id, taken.run, index, frame, name, each_data)
        )
        if status == "unknown_pipeline":
            raise StepNonsense(f"there is no pipeline {name!r}")
        _unless_cancelled(running, status)
        return None

    # Transitions

    async def _sleep(
        self, running: Running, outcome: Outcome, index: int, retry: int, data: bytes
    ) -> None:
        taken = running.taken
        frame = Frame(index, retry + 1, data if index else b"").encode()
        sleep_ms = None if outcome.seconds is None else round(outcome.seconds * 1000)
        status = await self._insist(
            lambda: self._store.sleep(taken.id, taken.run, frame, sleep_ms, outcome.switch)
        )
        self.tally.slept += 1
        _unless_cancelled(running, status)

    async def _hand_over(
        self, running: Running, index: int, frame: bytes, definition: StepDefinition
    ) -> None:
        """The next step is for a node that has it."""
        taken, step_type = running.taken, definition.type or ""
        status = await self._insist(
            lambda: self._store.hand_over(taken.id, taken.run, index, frame, step_type)
        )
        self.tally.handed_over += 1
        _unless_cancelled(running, status)

    async def _checkpoint(self, running: Running, index: int, frame: bytes) -> None:
        taken = running.taken
        status = await self._insist(
            lambda: self._store.checkpoint(taken.id, taken.run, index, frame)
        )
        if "f" not in taken.ties:
            taken.ties += "f"
        _unless_cancelled(running, status)

    async def _insist(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Again until Redis answers: every call here may be repeated."""
        backoff: Backoff | None = None
        while True:
            try:
                return await call()
            except PASSING as error:
                backoff = backoff or Backoff()
                self._log.warning("redis_awaited", error=str(error))
                await self._clock.sleep(backoff.next_delay_s())


def _unless_cancelled(running: Running, status: str) -> None:
    if status == "cancelled":
        running.stopped, running.note = Status.CANCELLED, ""
        raise StepStopped
    if status in NOT_OURS:
        raise RunLost


_ENDINGS = {Verdict.FAILED: Status.FAILED, Verdict.ABORTED: Status.ABORTED}


def _sane(outcome: Outcome) -> Outcome:
    """Refuse what the scripts can't take."""
    if not isinstance(outcome.note, str):
        raise StepNonsense("its note is no text")
    seconds = outcome.seconds
    if seconds is not None:
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 0 <= seconds <= SLEEP_S_MAX:
            raise StepNonsense(f"it wants to sleep for {seconds!r} seconds")
    if outcome.switch is not None:
        try:
            check_name(outcome.switch, "switch")
        except (AngariumError, TypeError) as error:
            raise StepNonsense(str(error)) from None
    return outcome


def _parts_of(data: bytes, definition: StepDefinition) -> list[bytes]:
    """The data of each child."""
    if definition.for_each is None:
        return [data]
    whole = _decode(data)
    parts = whole.get(definition.for_each) if isinstance(whole, dict) else None
    if not isinstance(parts, list):
        raise StepNonsense(f"its data has no list {definition.for_each!r}")
    return [_encode(part) for part in parts]


def _gathered(results: list[ChildResult], definition: StepDefinition, data: bytes) -> Outcome:
    """All children have ended: their outputs take the place of their data."""
    wrong = [each for each in results if each.status != Status.SUCCESS]
    if wrong:
        note = f"{len(wrong)} of {len(results)} children did not succeed"
        return Outcome(Verdict.FAILED, [msgspec.to_builtins(each) for each in results], note)
    outputs = [each.output for each in results]
    if definition.for_each is None:
        return Outcome(Verdict.SUCCEEDED, outputs[0])
    return Outcome(Verdict.SUCCEEDED, {**_decode(data), definition.for_each: outputs})
