"""What a user's step sees and says: a `Step` comes in, an `Outcome` goes out.

A step may run twice after a crash; `Step.key` is the same then, so that a payment, say, is made
under it once. Nothing here does I/O except `report_progress`, which is handed in.
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
    """How a step ended. Made by the methods of `Step`."""

    verdict: Verdict
    output: Any = None
    note: str = ""
    seconds: float | None = None
    switch: str | None = None


class Step:
    """One step of one transaction, for as long as it runs."""

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
        """The same each time this step of this transaction runs: for its own idempotence."""
        return f"{self.transaction_id}:{self.index}"

    def report_progress(self, report: Any) -> Awaitable[None]:
        """RestartingTask with the transaction, told to those who poll, and sent by webhook if asked for.
        Text in it that has no UTF-8 form is written with its escape.

        Await it; in a plain function it is done when the call returns.
        """
        return self._report(report)

    def succeeded(self, output: Any = None, note: str = "") -> Outcome:
        """Go on with `output` as the next step's data; None passes this step's data on."""
        return Outcome(Verdict.SUCCEEDED, self.data if output is None else output, note)

    def failed(self, note: str = "", output: Any = None) -> Outcome:
        """End the transaction as failed."""
        return Outcome(Verdict.FAILED, output, note)

    def aborted(self, note: str = "", output: Any = None) -> Outcome:
        """End the transaction as aborted: nothing was wrong, but it must not go on."""
        return Outcome(Verdict.ABORTED, output, note)

    def retry_later(self, seconds: float | None = None, switch: str | None = None) -> Outcome:
        """Sleep, then run this step again: after a time, when a switch is set, or either."""
        if seconds is None and switch is None:
            raise ValueError("retry_later needs seconds, a switch, or both")
        return Outcome(Verdict.RETRY_LATER, seconds=seconds, switch=switch)


class _Done:
    """Can be awaited, but need not be."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


def awaitable_anywhere(
    work: Coroutine[Any, Any, None], home: asyncio.AbstractEventLoop
) -> Awaitable[None]:
    """Work of the loop `home`, for whoever asks: a coroutine of it, a thread, another loop."""
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run_coroutine_threadsafe(work, home).result()
        return _Done()
    if here is home:
        return work
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, home))
