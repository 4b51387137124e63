"""The interface of step functions: a function gets a `Step` and returns an `Outcome`.

A step may run twice after a crash. `Step.key` is the same both times: an outside system that takes
it as idempotency key does the work once. Only `report_progress` does I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABORTED = "aborted"
    RETRY_LATER = "retry_later"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a step. Use the methods of `Step` to create one."""

    verdict: Verdict
    output: Any = None
    note: str = ""
    seconds: float | None = None
    switch: str | None = None


class Step:
    """One execution of one step of a transaction."""

    __slots__ = (
        "_report", "data", "external_id", "index", "metadata", "owner", "parameters", "pipeline",
        "retry", "switches", "transaction_id", "type",
    )  # fmt: skip

    def __init__(
        self,
        *,
        transaction_id: str,
        pipeline: str,
        owner: str,
        external_id: str | None,
        index: int,
        type: str,
        parameters: Mapping[str, Any],
        data: Any,
        metadata: Any,
        switches: Mapping[str, str],
        retry: int,
        report: Callable[[Any], Awaitable[None]],
    ) -> None:
        self.transaction_id = transaction_id
        self.pipeline = pipeline
        self.owner = owner
        self.external_id = external_id
        self.index = index
        self.type = type
        self.parameters = parameters
        self.data = data
        self.metadata = metadata
        self.switches = switches
        self.retry = retry
        self._report = report

    @property
    def key(self) -> str:
        """An idempotency key: the same each time this step of this transaction runs."""
        return f"{self.transaction_id}:{self.index}"

    def report_progress(self, report: Any) -> Awaitable[None]:
        """Store a progress report with the transaction, publish it as an event, and send it by
        webhook if the start asked for that. Text that has no UTF-8 form is written with its escape.

        Await it in a coroutine. In a plain function the report is stored when the call returns.
        """
        return self._report(report)

    def succeeded(self, output: Any = None, note: str = "") -> Outcome:
        """Continue with `output` as the data of the next step. None passes this step's data on."""
        return Outcome(Verdict.SUCCEEDED, self.data if output is None else output, note)

    def failed(self, note: str = "", output: Any = None) -> Outcome:
        """End the transaction as failed."""
        return Outcome(Verdict.FAILED, output, note)

    def aborted(self, note: str = "", output: Any = None) -> Outcome:
        """End the transaction as aborted: there was no error, but it must not continue."""
        return Outcome(Verdict.ABORTED, output, note)

    def retry_later(self, seconds: float | None = None, switch: str | None = None) -> Outcome:
        """Sleep, then run this step again: after `seconds`, or when `switch` is set."""
        if seconds is None and switch is None:
            raise ValueError("retry_later needs seconds, a switch, or both")
        return Outcome(Verdict.RETRY_LATER, seconds=seconds, switch=switch)


class _Done:
    """An awaitable for callers in a thread, who need not await it."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


def awaitable_anywhere(
    work: Coroutine[Any, Any, None], home: asyncio.AbstractEventLoop
) -> Awaitable[None]:
    """Run `work` on the loop `home`. The caller may be on that loop, on another one or in a thread.

    In a thread, the call blocks until the work is done.
    """
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run_coroutine_threadsafe(work, home).result()
        return _Done()
    if here is home:
        return work
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, home))
