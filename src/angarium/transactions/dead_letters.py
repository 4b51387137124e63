"""Transactions that ended because a step failed too often, of all pipelines and owners or of one.

They are in Redis until somebody retries or drops them, or until they are archived after
`transactions.dead_letter_retention`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from angarium.runtime.dead_letters import (
    PAGE_DEFAULT,
    DeadLetter,
    DeadLetterPage,
    DeadLetters,
    DeadLetterUnknown,
    DeadLetterUnusable,
    unknown,
)
from angarium.transactions.errors import NameInvalid, NotDead, PipelineUnknown, TransactionUnknown
from angarium.transactions.model import Transaction, check_transaction_id
from angarium.transactions.pages import TransactionFilter, TransactionsPage, TransactionSummary
from angarium.transactions.store import TransactionStore

# Ids that one page reads, and calls that are made at the same time.
CHUNK = 500

Pages = Callable[[TransactionFilter, int, str | None], Awaitable[TransactionsPage]]
Action = Callable[[str], Awaitable[str]]
"""Acts on one dead letter and returns its status, or `unknown` if it is none any more."""


class DeadTransaction(DeadLetter, frozen=True, kw_only=True):
    """`tries` includes `crashes`, those of nodes that ran the step. `step` counts from 1. `data` is
    what the transaction was started with; lists leave it out."""

    pipeline: str
    owner: str
    step: int
    crashes: int
    note: str
    data: Any = None


class TransactionDeadLetters(DeadLetters[DeadTransaction]):
    columns = ("pipeline", "owner", "step", "note")

    def __init__(
        self, store: TransactionStore, pages: Pages, pipeline: str = "", owner: str = ""
    ) -> None:
        self._store = store
        self._pages = pages
        self._pipeline, self._owner = pipeline, owner

    async def page(
        self, limit: int = PAGE_DEFAULT, after: str | None = None, reason: str = ""
    ) -> DeadLetterPage[DeadTransaction]:
        """The last one of each partition first."""
        page = await self._page(limit, after, reason)
        return DeadLetterPage([_view(each) for each in page.transactions], page.next)

    async def find(self, id: str) -> DeadTransaction:
        with _refusals(id):
            found = await self._store.find(check_transaction_id(id))
            if found is None or not self._includes(found):
                raise unknown(id)
            # Redis keeps the reason of a dead letter only.
            if found.reason is None or not found.status.final:
                raise NotDead(f"transaction {id!r} is not a dead letter")
        return _view(found, msgspec.json.decode(found.data))

    async def retry(self, id: str) -> None:
        """At the step that failed, with the data that this step had."""
        await self._check_included(id)
        with _refusals(id):
            await self._store.rerun(check_transaction_id(id))

    async def drop(self, id: str) -> None:
        """It is archived as any other transaction that has ended."""
        await self._check_included(id)
        with _refusals(id):
            await self._store.drop(check_transaction_id(id))

    async def retry_all(self, reason: str = "") -> Counter[str]:
        return await self._all(self._retried, reason)

    async def drop_all(self, reason: str = "") -> int:
        return (await self._all(self._dropped, reason)).total()

    async def _page(self, limit: int, after: str | None, reason: str) -> TransactionsPage:
        wanted = TransactionFilter(None, self._pipeline, self._owner, reason)
        return await self._pages(wanted, limit, after)

    async def _all(self, action: Action, reason: str) -> Counter[str]:
        # The list is read first: each call moves the places of those behind it.
        ids = await self._ids(reason)
        statuses: Counter[str] = Counter()
        for first in range(0, len(ids), CHUNK):
            some = ids[first : first + CHUNK]
            # All calls have ended before the first error is raised.
            answers = await asyncio.gather(*map(action, some), return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
                statuses[answer] += 1
        # Somebody else retried or dropped it between reading and acting.
        del statuses["unknown"]
        return statuses

    async def _ids(self, reason: str) -> list[str]:
        ids: dict[str, None] = {}
        after: str | None = None
        while True:
            page = await self._page(CHUNK, after, reason)
            # An id comes twice if another transaction has died between two pages.
            ids.update((each.id, None) for each in page.transactions)
            after = page.next
            if after is None:
                return [*ids]

    async def _retried(self, id: str) -> str:
        try:
            await self._store.rerun(id)
        except PipelineUnknown:
            return "unusable"
        except (NotDead, TransactionUnknown):
            return "unknown"
        return "retried"

    async def _dropped(self, id: str) -> str:
        try:
            await self._store.drop(id)
        except (NotDead, TransactionUnknown):
            return "unknown"
        return "dropped"

    async def _check_included(self, id: str) -> None:
        if self._pipeline or self._owner:
            await self.find(id)

    def _includes(self, found: Transaction) -> bool:
        return self._pipeline in ("", found.pipeline) and self._owner in ("", found.owner)


@contextmanager
def _refusals(id: str) -> Iterator[None]:
    """Turns the errors of transactions into those of dead letters."""
    try:
        yield
    except (NameInvalid, TransactionUnknown):
        raise unknown(id) from None
    except NotDead as error:
        raise DeadLetterUnknown(str(error)) from None
    except PipelineUnknown as error:
        raise DeadLetterUnusable(str(error)) from None


def _view(found: TransactionSummary | Transaction, data: Any = None) -> DeadTransaction:
    return DeadTransaction(
        id=found.id,
        at_ms=found.completed_ms or found.updated_ms,
        tries=found.tries + found.crashes,
        reason=found.reason or "",
        pipeline=found.pipeline,
        owner=found.owner,
        step=found.step + 1,
        crashes=found.crashes,
        note=found.note or "",
        data=data,
    )
