"""Makes the `Step` that a function gets: its data, and what it may ask of the node that runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import msgspec

from angarium.runtime.errors import LimitExceeded
from angarium.transactions.limits import TransactionsLimits
from angarium.transactions.model import TakenTransaction, Transaction
from angarium.transactions.pipeline import StepDefinition
from angarium.transactions.progress_report import encode_progress_report
from angarium.transactions.repeated_calls import RepeatedCalls
from angarium.transactions.running import RUN_LOST_STATUSES, RunLost, RunningTransaction
from angarium.transactions.step import Step, awaitable_anywhere
from angarium.transactions.store import TransactionStore

_decode = msgspec.json.decode


class StepFactory:
    """`find` gets the state of a transaction, for outputs that are given by reference."""

    def __init__(
        self,
        store: TransactionStore,
        calls: RepeatedCalls,
        limits: TransactionsLimits,
        find: Callable[[str], Coroutine[Any, Any, Transaction]],
    ) -> None:
        self._store = store
        self._calls = calls
        self._limits = limits
        self._find = find
        self._loop = asyncio.get_running_loop()

    def create(
        self,
        running: RunningTransaction,
        definition: StepDefinition,
        index: int,
        retry: int,
        data: bytes,
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
            find=self._output_of,
        )

    async def _output_of(self, value: Any) -> Any:
        if not (isinstance(value, dict) and value.keys() == {"output_of"}):
            return value
        find = self._find(value["output_of"])
        if asyncio.get_running_loop() is self._loop:
            return _decode((await find).output)
        found = asyncio.run_coroutine_threadsafe(find, self._loop)
        return _decode((await asyncio.wrap_future(found)).output)

    def _report(self, taken: TakenTransaction, progress: Any) -> Awaitable[None]:
        report, size_max = encode_progress_report(progress), self._limits.transaction_data_bytes_max
        if len(report) > size_max:
            raise LimitExceeded("transaction_data_bytes_max", len(report), size_max)
        return awaitable_anywhere(self._send_report(taken, report), self._loop)

    async def _send_report(self, taken: TakenTransaction, report: bytes) -> None:
        status = await self._calls.until_answered(
            lambda: self._store.report_progress(taken.id, taken.run, report)
        )
        if status in RUN_LOST_STATUSES:
            raise RunLost
