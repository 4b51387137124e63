"""Runs one transaction through the steps of its pipeline.

A finished step is stored before the next one begins, so a crash repeats only the step that was
running. A step that raises or takes too long is tried again by its retry policy: Redis stores the
number of tries, and the transaction sleeps between two tries. Whatever a step does becomes a status
of its transaction and never an error of the node. While Redis is unreachable, calls are repeated. A
run that another node has taken over is dropped.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from angarium.runtime.application import Caller, Handler, HandlerExit
from angarium.runtime.clock import Clock
from angarium.runtime.errors import (
    AngariumError,
)
from angarium.runtime.log import logger
from angarium.runtime.text import valid_text
from angarium.runtime.trace import CURRENT_WORK, CurrentWork
from angarium.transactions.children import children_data, children_outcome
from angarium.transactions.limits import TransactionsLimits
from angarium.transactions.model import (
    Checkpoint,
    Transaction,
    TransactionStatus,
    depth_of,
)
from angarium.transactions.pipeline import PipelineDefinition, StepDefinition
from angarium.transactions.pipeline_cache import PipelineCache
from angarium.transactions.repeated_calls import RepeatedCalls
from angarium.transactions.running import (
    RUN_LOST_STATUSES,
    Completion,
    NodeMetrics,
    RunLost,
    RunningTransaction,
    StepError,
    StepFailed,
    StepStopped,
    checked,
    retries_timeout,
)
from angarium.transactions.step import Outcome, Step, Verdict
from angarium.transactions.step_factory import StepFactory
from angarium.transactions.store import TransactionStore

NOTE_CHARS_MAX = 1_000
# Threads of plain functions that never returned. With more, steps wait for a thread.
LOST_THREADS_MAX = 256
# Every dequeue sends these names, so the list stays as small as one or two packets.
COMPLETE_PIPELINES_MAX = 50

_decode = msgspec.json.decode
_encode = msgspec.json.Encoder().encode


class TransactionRunner:
    def __init__(
        self,
        store: TransactionStore,
        pipelines: PipelineCache,
        handlers: Mapping[str, Handler],
        threads: int,
        clock: Clock,
        limits: TransactionsLimits,
        step_timeout_ms: int,
        max_runs: int,
        find: Callable[[str], Coroutine[Any, Any, Transaction]],
    ) -> None:
        self._store = store
        self._pipelines = pipelines
        # «name|version» of pipelines whose steps this node has, for the next dequeue.
        self.complete_pipelines = ""
        # With two values that every step needs: whether it is async, and its own time-out.
        self._handlers = {
            name: (each, each.is_async, (each.retry.timeout_s or 0) * 1000)
            for name, each in handlers.items()
        }
        # Free threads. A node takes only steps for which one is free.
        self.threads_free = threads
        self._max_runs = max_runs
        self._calls = RepeatedCalls(clock)
        self._steps = StepFactory(store, self._calls, limits, find)
        self._caller = Caller(threads + LOST_THREADS_MAX)
        self._clock = clock
        self._limits = limits
        self._step_timeout_ms = step_timeout_ms
        self._log = logger("angarium.node")
        self.metrics = NodeMetrics()
        # Called when a transaction that goes on has released its thread.
        self.on_thread_free: Callable[[], None] = lambda: None

    def close(self) -> None:
        self._caller.close()

    async def run(self, running: RunningTransaction) -> Completion | None:
        """How the transaction ended. None if it sleeps, waits, or belongs to another run."""
        completion = await self._completion(running)
        if completion is not None and completion.reason:
            note = valid_text(completion.note)[:NOTE_CHARS_MAX]
            self._log.error("transaction_dead", transaction=running.taken.id, reason=note)
        return completion

    async def _completion(self, running: RunningTransaction) -> Completion | None:
        try:
            return await self._run(running)
        except (asyncio.CancelledError, StepStopped):
            task = asyncio.current_task()
            if running.stopped is None or task is None:
                raise  # the node stops, and returns the transaction to its queue
            task.uncancel()
            reason = "TimeoutError" if running.step_late else ""
            return Completion(running.stopped, b"", running.note, reason)
        except RunLost:
            self.metrics.lost += 1
            return None
        except Exception as error:
            # An error in this node's code. Without an end, nodes would take it again for ever.
            self._log.error(
                "run_failed", transaction=running.taken.id, error=repr(error), exc_info=error
            )
            note = f"the node failed: {type(error).__name__}: {error}"
            return Completion(TransactionStatus.INTERNAL_ERROR, b"", note, "node_failed")

    def take_thread(self, running: RunningTransaction) -> bool:
        """False if no thread is free."""
        if not running.has_thread:
            if self.threads_free <= 0:
                return False
            self.threads_free -= 1
            running.has_thread = True
        return True

    def release_thread(self, running: RunningTransaction) -> bool:
        """True if it held one."""
        held, running.has_thread = running.has_thread, False
        self.threads_free += held
        return held

    def end_soon(self, running: RunningTransaction, completion: Completion) -> asyncio.Future[str]:
        """Add the completion to the next batch. The caller must check the future's status."""
        note = valid_text(completion.note)[:NOTE_CHARS_MAX]
        status, reason = completion.status.value, completion.reason
        return self._store.complete_soon(running.taken, status, completion.output, note, reason)

    def has_ended(self, completion: Completion, status: asyncio.Future[str]) -> bool:
        """False if Redis did not accept the completion, or it is not known."""
        if status.cancelled() or status.exception() is not None or status.result() != "completed":
            return False
        self._count_end(completion)
        return True

    async def end(self, running: RunningTransaction, completion: Completion) -> None:
        """Returns when the transaction has ended, or is known to belong to another run."""
        try:
            status = await self._calls.until_answered(lambda: self.end_soon(running, completion))
        except Exception as error:
            # No node runs the transaction now. It is recovered like one of a dead node.
            self._log.error("end_failed", transaction=running.taken.id, error=repr(error))
            return
        if status == "completed":
            self._count_end(completion)
        else:
            self.metrics.lost += 1

    def _count_end(self, completion: Completion) -> None:
        ended, status = self.metrics.ended, completion.status.value
        ended[status] = ended.get(status, 0) + 1

    async def _run(self, running: RunningTransaction) -> Completion | None:
        taken = running.taken
        if taken.cancel:
            return Completion(TransactionStatus.CANCELLED)
        if taken.remaining_ms <= 0:
            return Completion(TransactionStatus.TIMEOUT, b"", "the transaction took too long")
        name, version = taken.pipeline, taken.version
        pipeline = self._pipelines.known(name, version)
        if pipeline is None:
            try:
                pipeline = await self._calls.until_answered(
                    lambda: self._pipelines.get(name, version)
                )
            except (AngariumError, KeyError):
                note = f"version {version} of pipeline {name} is gone"
                return Completion(TransactionStatus.INTERNAL_ERROR, b"", note, "pipeline_gone")
            self._remember_complete(pipeline, version)
        checkpoint = Checkpoint.decode(taken.checkpoint)
        data = checkpoint.data or taken.data
        index, retry = checkpoint.step, checkpoint.retry
        if not self._can_run(running, pipeline.steps[index]):
            # The dequeue script could not read the definition.
            await self._hand_over(running, index, taken.checkpoint, pipeline.steps[index])
            return None
        while True:
            definition = pipeline.steps[index]
            try:
                outcome = await self._outcome(running, definition, index, retry, data)
                if outcome is None:
                    return None  # the children run now
                output = self._output(outcome)
            except StepError as error:
                note = f"step {index + 1}: {error}"
                return Completion(TransactionStatus.INTERNAL_ERROR, b"", note, "step_unusable")
            except StepFailed as failed:
                checkpoint = Checkpoint(index, retry, data if index else b"")
                return await self._failed(running, definition, checkpoint, failed)
            if outcome.verdict is Verdict.RETRY_LATER:
                await self._sleep(running, outcome, index, retry, data)
                return None
            if outcome.verdict is not Verdict.SUCCEEDED:
                return Completion(_FINAL_STATUSES[outcome.verdict], output, outcome.note)
            index, retry, data = index + 1, 0, output
            if index == len(pipeline.steps):
                return Completion(TransactionStatus.SUCCESS, output, outcome.note)
            encoded = Checkpoint(index, 0, data).encode()
            if not self._can_run(running, pipeline.steps[index]):
                await self._hand_over(running, index, encoded, pipeline.steps[index])
                return None
            await self._checkpoint(running, index, encoded)
            taken.children, taken.tries, taken.crashes = (), 0, 0

    def _remember_complete(self, pipeline: PipelineDefinition, version: str) -> None:
        """Remember that this node has all steps of a pipeline and needs no thread for them, so the
        next dequeue need not check them. Only an optimisation, so the list keeps the last ones."""
        words, name = self.complete_pipelines.split(), f"{pipeline.name}|{version}"
        if name not in words and all(
            self._has_step(each) and not self._is_plain(each) for each in pipeline.steps
        ):
            self.complete_pipelines = f" {' '.join([*words[1 - COMPLETE_PIPELINES_MAX :], name])} "

    def _has_step(self, definition: StepDefinition) -> bool:
        return definition.type is None or definition.type in self._handlers

    def _is_plain(self, definition: StepDefinition) -> bool:
        return definition.type is not None and not self._handlers[definition.type][1]

    def _can_run(self, running: RunningTransaction, definition: StepDefinition) -> bool:
        """Whether this node has the step, and a thread for it if it is a plain function."""
        if not self._has_step(definition):
            return False
        if self._is_plain(definition):
            return self.take_thread(running)
        if self.release_thread(running):
            self.on_thread_free()
        return True

    # One step

    async def _outcome(
        self,
        running: RunningTransaction,
        definition: StepDefinition,
        index: int,
        retry: int,
        data: bytes,
    ) -> Outcome | None:
        if definition.pipeline is not None:
            return await self._children(running, definition, index, data)
        handler, is_async, own_ms = self._handlers[definition.type or ""]
        if running.cancel:
            running.stopped = TransactionStatus.CANCELLED
            raise StepStopped
        step = self._steps.create(running, definition, index, retry, data)
        limit_ms = definition.timeout_ms or own_ms or self._step_timeout_ms
        running.step, running.limit_ms = step, limit_ms
        self.metrics.steps += 1
        # Calls that the step makes continue the trace.
        CURRENT_WORK.set(CurrentWork(running.taken.id.encode(), step.metadata))
        try:
            if is_async:
                running.step_deadline_s = self._clock.monotonic() + limit_ms / 1000
                result = await handler.function(step)
            else:
                result = await self._in_thread(running, handler, step, limit_ms)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                if task is None or not retries_timeout(running, is_async):
                    raise
                task.uncancel()
                raise StepFailed(TimeoutError(running.note)) from None
            raise StepFailed(HandlerExit(f"the function raised {error!r}")) from None
        except RunLost:
            raise
        except BaseException as error:
            self._log.warning(
                "step_raised", transaction=running.taken.id, step=definition.type,
                tries=running.taken.tries + 1, error=repr(error), exc_info=error,
            )  # fmt: skip
            if isinstance(error, Exception):
                raise StepFailed(error) from None
            # sys.exit and the like would end the node.
            raise StepFailed(HandlerExit(f"the function raised {error!r}")) from None
        finally:
            running.step_deadline_s = math.inf
        if running.stopped is not None:
            if retries_timeout(running, is_async):
                raise StepFailed(TimeoutError(running.note))
            raise StepStopped
        if isinstance(result, Outcome):
            return checked(result)
        if result is None or isinstance(result, dict):
            return Outcome(Verdict.SUCCEEDED, result)
        raise StepError(f"it returned {type(result).__name__}, not an outcome, a dict or None")

    async def _failed(
        self,
        running: RunningTransaction,
        definition: StepDefinition,
        checkpoint: Checkpoint,
        failed: StepFailed,
    ) -> Completion | None:
        """Sleep until the next try, or end the transaction as a dead letter."""
        taken, error = running.taken, failed.error
        policy = self._handlers[definition.type or ""][0].retry
        late, running.stopped, running.step_late = running.step_late, None, False
        tries, note = taken.tries + 1, valid_text(str(failed))[:NOTE_CHARS_MAX]
        runs = tries + taken.crashes if policy.retries is None else tries
        runs_max = self._max_runs if policy.retries is None else policy.retries + 1
        self.metrics.failed_tries += 1
        if runs >= runs_max or not policy.retries_error(error):
            times = "once" if tries == 1 else f"{tries} times"
            where = f"step {checkpoint.step + 1} ({definition.type}) failed {times}"
            status = TransactionStatus.TIMEOUT if late else TransactionStatus.FAILED
            return Completion(status, b"", f"{where}; last error: {note}", type(error).__name__)
        sleep_ms = round(policy.next_delay_s(tries) * 1000)
        reply = await self._calls.until_answered(
            lambda: self._store.record_failed_try(taken, checkpoint.encode(), sleep_ms, tries, note)
        )
        _check_status(running, reply)
        return None

    async def _in_thread(
        self, running: RunningTransaction, handler: Handler, step: Step, limit_ms: float
    ) -> Any:
        """A thread that never returns is abandoned, and a new one replaces it."""
        running.step_deadline_s = self._clock.monotonic() + limit_ms / 1000
        return await self._caller.call(handler, step)

    def _output(self, outcome: Outcome) -> bytes:
        try:
            output = b"" if outcome.output is None else _encode(outcome.output)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise StepError(f"its output is not JSON: {error}") from None
        if outcome.verdict is Verdict.SUCCEEDED and not output:
            output = b"null"
        size_max = self._limits.transaction_data_bytes_max
        if len(output) > size_max:
            raise StepError(f"its output of {len(output)} bytes is over {size_max}")
        return output

    # Children

    async def _children(
        self, running: RunningTransaction, definition: StepDefinition, index: int, data: bytes
    ) -> Outcome | None:
        """None if the children were started now. The transaction sleeps until they have ended."""
        taken, name = running.taken, definition.pipeline
        assert name is not None
        if taken.children:
            return children_outcome(taken.children, definition, data)
        each_data = children_data(data, definition)
        if not each_data:
            return Outcome(Verdict.SUCCEEDED, _decode(data))
        if len(each_data) > self._limits.transaction_children_items_max:
            raise StepError(f"{len(each_data)} children are too many")
        if depth_of(taken.id) >= self._limits.transaction_depth_items_max:
            raise StepError("pipelines call pipelines too deeply")
        checkpoint = Checkpoint(index, 0, data if index else b"").encode()
        status = await self._calls.until_answered(
            lambda: self._store.call_children(
                taken.id, taken.run, index, checkpoint, name, each_data
            )
        )
        if status == "unknown_pipeline":
            raise StepError(f"there is no pipeline {name!r}")
        _check_status(running, status)
        return None

    # Transitions

    async def _sleep(
        self, running: RunningTransaction, outcome: Outcome, index: int, retry: int, data: bytes
    ) -> None:
        taken = running.taken
        checkpoint = Checkpoint(index, retry + 1, data if index else b"").encode()
        sleep_ms = None if outcome.seconds is None else round(outcome.seconds * 1000)
        status = await self._calls.until_answered(
            lambda: self._store.sleep(taken.id, taken.run, checkpoint, sleep_ms, outcome.switch)
        )
        self.metrics.slept += 1
        _check_status(running, status)

    async def _hand_over(
        self, running: RunningTransaction, index: int, checkpoint: bytes, definition: StepDefinition
    ) -> None:
        """Queue the transaction for a node that can run the next step."""
        taken, step_type = running.taken, definition.type or ""
        missing = not self._has_step(definition)
        status = await self._calls.until_answered(
            lambda: self._store.hand_over(
                taken.id, taken.run, index, checkpoint, step_type, missing=missing
            )
        )
        self.metrics.handed_over += 1
        _check_status(running, status)

    async def _checkpoint(self, running: RunningTransaction, index: int, checkpoint: bytes) -> None:
        taken = running.taken
        status = await self._calls.until_answered(
            lambda: self._store.checkpoint(taken.id, taken.run, index, checkpoint)
        )
        if "f" not in taken.flags:
            taken.flags += "f"
        _check_status(running, status)


def _check_status(running: RunningTransaction, status: str) -> None:
    """Raise if the transaction must be cancelled, or belongs to another run."""
    if status == "cancelled":
        running.stopped, running.note = TransactionStatus.CANCELLED, ""
        raise StepStopped
    if status in RUN_LOST_STATUSES:
        raise RunLost


_FINAL_STATUSES = {
    Verdict.FAILED: TransactionStatus.FAILED,
    Verdict.ABORTED: TransactionStatus.ABORTED,
}
