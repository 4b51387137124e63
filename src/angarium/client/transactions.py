"""Starts, shows, awaits, wakes and cancels transactions.

A worker's function that runs twice starts its transaction once: within it, the message's id is
the externalId unless another is given. The metadata carries the trace of the current work.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import msgspec

from angarium.client.dispatch import encoded
from angarium.lake.filed import transactions_of
from angarium.redis.backoff import Backoff
from angarium.runtime.dead_letters import DeadLetterPage
from angarium.runtime.errors import InputInvalid
from angarium.runtime.runtime import Runtime
from angarium.runtime.trace import CURRENT_WORK, TRACEPARENT, Trace, current_trace
from angarium.transactions.dead_letters import DeadTransaction
from angarium.transactions.model import (
    OWNER_DEFAULT,
    Transaction,
    TransactionStart,
    TransactionStarted,
)
from angarium.transactions.pipeline import PipelineDefinition, pipeline_of
from angarium.transactions.service import TransactionsService


class TransactionState(Transaction, frozen=True, omit_defaults=True, kw_only=True):
    """A transaction with its values read from JSON, as `state.output["total"]`."""

    data: Any
    metadata: Any
    progress: Any
    output: Any


def _state(found: Transaction) -> TransactionState:
    values = {name: getattr(found, name) for name in found.__struct_fields__}
    for name in ("data", "metadata", "progress", "output"):
        text = bytes(values[name])
        values[name] = msgspec.json.decode(text) if text else None
    return TransactionState(**values)


class TransactionsClient:
    def __init__(self, runtime: Runtime) -> None:
        self._transactions = TransactionsService(
            runtime, lake_lookup=transactions_of(runtime.settings)
        )
        self._clock = runtime.clock
        self._tracing = runtime.tracing

    async def start(
        self,
        pipeline: str,
        data: Any = None,
        *,
        owner: str = OWNER_DEFAULT,
        external_id: str | None = None,
        version: int | None = None,
        webhook: str | None = None,
    ) -> TransactionStarted:
        """Start a transaction, or return the first one of its externalId (`duplicate`)."""
        start = TransactionStart(
            pipeline,
            encoded({} if data is None else data),
            owner,
            external_id or _external_id(),
            version,
            webhook,
        )
        return await self._traced(start, current_trace())

    async def _traced(self, start: TransactionStart, trace: Trace | None) -> TransactionStarted:
        """Start with the trace of the current work, or else with the trace derived from its id."""
        tracing, values = self._tracing, {"angarium.pipeline": start.pipeline}
        if tracing is None:
            return await self._transactions.start(_carrying(start, trace))
        if trace is not None:
            with tracing.span("transactions start", trace, values, kind="producer") as own:
                return await self._transactions.start(_carrying(start, own))
        began_ns = time.time_ns()
        started = await self._transactions.start(start)
        if not started.duplicate:
            tracing.started(started.transaction_id, "transactions start", began_ns, values)
        return started

    async def status(self, transaction_id: str) -> TransactionState:
        """From Redis, else from the archive; raises `TransactionUnknown`."""
        return _state(await self._transactions.get(transaction_id))

    async def by_external_id(
        self, external_id: str, owner: str = OWNER_DEFAULT
    ) -> TransactionState:
        return _state(await self._transactions.get_by_external_id(owner, external_id))

    async def wait(self, transaction_id: str, timeout_s: float = 30.0) -> TransactionState:
        """Wait for its end. After the timeout, return its current state."""
        until_s = self._clock.monotonic() + timeout_s
        pause = Backoff(base_s=0.02, ceiling_s=0.5)
        while True:
            found = await self.status(transaction_id)
            left_s = until_s - self._clock.monotonic()
            if found.status.final or left_s <= 0:
                return found
            await self._clock.sleep(min(left_s, pause.next_delay_s()))

    async def switch(self, transaction_id: str, name: str, value: str = "") -> str:
        """Returns 'woken', or 'set' if it does not sleep for the switch yet."""
        return await self._transactions.set_switch(transaction_id, name, value)

    async def cancel(self, transaction_id: str) -> str:
        """Returns 'cancelled', or 'cancelling' if its node must stop it first."""
        return await self._transactions.cancel(transaction_id)

    async def dead_letters(
        self, limit: int = 50, after: str | None = None, *, reason: str = "", owner: str = ""
    ) -> DeadLetterPage[DeadTransaction]:
        """Transactions that ended because a step failed too often, for a reason that contains
        `reason`; `next` of a page is `after` of the next one."""
        return await self._transactions.dead_letters(owner=owner).page(limit, after, reason)

    async def rerun(self, transaction_id: str, data: Any = None) -> str:
        """Run a dead letter again from the step that failed, with new data if it is given."""
        return await self._transactions.rerun(
            transaction_id, b"" if data is None else encoded(data)
        )

    async def drop(self, transaction_id: str) -> str:
        """Give up a dead letter."""
        return await self._transactions.drop(transaction_id)

    async def load(self, *pipelines: PipelineDefinition | dict[str, Any]) -> dict[str, int]:
        """Store definitions. Returns the version of each name."""
        return await self._transactions.load([pipeline_of(each) for each in pipelines])

    async def close(self) -> None:
        await self._transactions.close()


def _external_id() -> str | None:
    handling = CURRENT_WORK.get()
    if handling is None or handling.message_id is None:
        return None
    message_id = handling.message_id_once()
    if message_id is None:
        # With the same id, the second start would silently return the first transaction.
        raise InputInvalid(
            "this message has started a transaction already; give each its own external_id"
        )
    return message_id


def _carrying(start: TransactionStart, trace: Trace | None) -> TransactionStart:
    return start if trace is None else replace(start, metadata=encoded({TRACEPARENT: trace.header}))
