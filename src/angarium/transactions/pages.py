"""Pages of transactions of one status, as summaries or whole, from Redis and then the archive.

A transaction that changes its status between two pages may appear twice or not at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from angarium.runtime.errors import InputInvalid
from angarium.runtime.limits import MIB
from angarium.runtime.page_cursor import cursor_numbers, page_cursor
from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition
from angarium.runtime.urls import redacted
from angarium.transactions import keys
from angarium.transactions.model import (
    Transaction,
    TransactionStatus,
    awaited_step,
    check_transaction_id,
    faults_of,
    pairs_of,
    transaction_of,
)
from angarium.transactions.transitions import PACKAGE, QUEUES

# One call reads at most this many entries, because its script blocks Redis. The next continues.
READ_MAX = 1_000
# A page ends after this many calls, with a cursor, even if the filter has found nothing yet.
CALLS_MAX = 100
# The size of one page of whole transactions; the last one may exceed it.
PAGE_BYTES_MAX = 8 * MIB
# Later than any time of completion: the archive from its newest transaction on.
MOMENT_MAX = 2**63 - 1
ARCHIVE = "archive:"
_FIELDS = (
    "label", "status", "created", "updated", "taken", "completed", "step", "node", "wake",
    "switch", "externalId", "note", "webhook", "hookTries", "hookError", "waits",
    "reason", "faults",
)  # fmt: skip


class TransactionSummary(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    id: str
    status: TransactionStatus
    owner: str
    pipeline: str
    node_group: str
    created_ms: int
    updated_ms: int
    completed_ms: int | None = None
    step: int = 0
    node: str | None = None
    wake_ms: int | None = None
    switch: str | None = None
    waits_for_step: str | None = None
    external_id: str | None = None
    note: str | None = None
    reason: str | None = None
    tries: int = 0
    crashes: int = 0


class ScheduledWebhook(msgspec.Struct, frozen=True):
    """`next_ms` is the time of the next attempt."""

    transaction_id: str
    pipeline: str
    owner: str
    status: TransactionStatus
    url: str
    tries: int
    next_ms: int
    error: str | None


@dataclass(frozen=True)
class TransactionFilter:
    """`status` None: dead letters, whose reason contains `reason`."""

    status: TransactionStatus | None
    pipeline: str = ""
    owner: str = ""
    reason: str = ""


class PageArgs(NamedTuple):
    """`source` is a queue (admin, out, in) of `node_group`, or a sorted set; `fields` are names
    with spaces, or empty for all."""

    source: str
    node_group: str
    first: int
    limit: int
    read_max: int
    bytes_max: int
    pipeline: str
    owner: str
    status: str
    reason: str
    fields: str


class PageReply(NamedTuple):
    """Where the next page begins, or -1; a row is an id, its score, and the fields."""

    next: int
    rows: list[Any]


PAGE: Transition[Any] = Transition(
    PACKAGE,
    "page_transactions",
    keys={
        "processing": keys.PROCESSING,
        "sleeping": keys.SLEEPING,
        "to_archive": keys.TO_ARCHIVE,
        "waiting": keys.WAITING_DEADLINES,
        "webhooks": keys.WEBHOOKS,
        "dead": keys.DEAD_LETTERS,
    },
    stems={**QUEUES, "states": keys.STATE, "fair": keys.FAIR_QUEUE},
    args=PageArgs,
    replies={"page": PageReply},
)


class PageSource(NamedTuple):
    """A queue or sorted set of one partition."""

    partition: int
    name: str
    node_group: str = ""


class TransactionsPage(msgspec.Struct, frozen=True):
    """`next` is the parameter `after` for the next page; null on the last."""

    transactions: list[TransactionSummary]
    next: str | None


class WholeTransactionsPage(msgspec.Struct, frozen=True):
    """`next` is the parameter `after` for the next page; null on the last."""

    transactions: list[Transaction]
    next: str | None


class WebhooksPage(msgspec.Struct, frozen=True):
    webhooks: list[ScheduledWebhook]
    next: str | None


ArchivePage = Callable[
    [TransactionFilter, int, tuple[int, str] | None], Awaitable[list[Transaction]]
]
"""Reads transactions from the archive that completed before a time and id, newest first."""


class TransactionPages:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._partitions = range(runtime.settings.partitions)

    def sources(self, status: TransactionStatus | None, groups: Sequence[str]) -> list[PageSource]:
        """Every queue and sorted set with transactions of a status, or with dead letters."""
        if status is None:
            return [PageSource(partition, "dead") for partition in self._partitions]
        if status is TransactionStatus.QUEUED:
            return [
                source
                for partition in self._partitions
                for source in (
                    *(PageSource(partition, name, group) for group in groups for name in QUEUES),
                    PageSource(partition, "waiting"),
                )
            ]
        name = {TransactionStatus.RUNNING: "processing", TransactionStatus.SLEEPING: "sleeping"}
        found = name.get(status, "to_archive")
        return [PageSource(partition, found) for partition in self._partitions]

    async def summaries(
        self,
        wanted: TransactionFilter,
        groups: Sequence[str],
        limit: int,
        after: str | None,
        archive: ArchivePage,
    ) -> TransactionsPage:
        """A page without the transactions' data."""

        async def read(source: PageSource, first: int, count: int) -> tuple[list[Any], int]:
            found = await self._page(source, wanted, first, count, " ".join(_FIELDS))
            return [_summary(row[0], row[2]) for row in found.rows], found.next

        rows, following = await self._walk(wanted, groups, limit, after, archive, read)
        found = [_summary_of(row) if isinstance(row, Transaction) else row for row in rows]
        return TransactionsPage(found, following)

    async def whole(
        self,
        wanted: TransactionFilter,
        groups: Sequence[str],
        limit: int,
        after: str | None,
        archive: ArchivePage,
    ) -> WholeTransactionsPage:
        """A page of transactions with their data, of about PAGE_BYTES_MAX."""
        left = PAGE_BYTES_MAX

        async def read(source: PageSource, first: int, count: int) -> tuple[list[Any], int]:
            nonlocal left
            found = await self._page(source, wanted, first, count, "", left)
            for row in found.rows:
                left -= sum(map(len, row[2]))
            rows = [transaction_of(row[0].decode(), pairs_of(row[2])) for row in found.rows]
            return rows, found.next

        async def read_archive(
            wanted: TransactionFilter, count: int, before: tuple[int, str] | None
        ) -> list[Transaction]:
            return await archive(wanted, count, before) if left > 0 else []

        found = await self._walk(
            wanted, groups, limit, after, read_archive, read, full=lambda: left <= 0
        )
        return WholeTransactionsPage(*found)

    async def _walk(
        self,
        wanted: TransactionFilter,
        groups: Sequence[str],
        limit: int,
        after: str | None,
        archive: ArchivePage,
        read: Callable[[PageSource, int, int], Awaitable[tuple[list[Any], int]]],
        full: Callable[[], bool] = lambda: False,
    ) -> tuple[list[Any], str | None]:
        """Rows from the sources, one after the other, and the cursor of the next page."""
        found: list[Any] = []
        # Dead letters are in Redis only.
        if wanted.status is None or after is None or not after.startswith(ARCHIVE):
            sources = self.sources(wanted.status, groups)
            place, first = cursor_numbers(after, 2)
            calls = 0
            while place < len(sources) and len(found) < limit and not full() and calls < CALLS_MAX:
                rows, following = await read(sources[place], first, limit - len(found))
                found += rows
                place, first = (place + 1, 0) if following < 0 else (place, following)
                calls += 1
            if place < len(sources):
                return found, page_cursor(place, first)
            if wanted.status is None or not wanted.status.final:
                return found, None
            after = f"{ARCHIVE}{MOMENT_MAX}:~"
        left = limit - len(found)
        if left <= 0 or full():
            return found, after
        some = await archive(wanted, left, _moment_of(after))
        known = {each.id for each in found}
        found += [each for each in some if each.id not in known]
        if len(some) < left:
            return found, None
        last = some[-1]
        return found, f"{ARCHIVE}{last.completed_ms or last.updated_ms}:{last.id}"

    async def newest_without_dead_letter(self, status: TransactionStatus, limit: int) -> list[str]:
        """Ids of those of the last ended transactions in Redis that have the status and are no
        dead letters; `limit` at most in each partition."""
        wanted, found = TransactionFilter(status), []
        for source in self.sources(status, ()):
            page = await self._page(source, wanted, 0, limit, "reason")
            found += [id.decode() for id, _, (reason,) in page.rows if not reason]
        return found

    async def webhooks(self, limit: int, after: str | None) -> WebhooksPage:
        """In the order of their next attempts."""
        partition, first = cursor_numbers(after, 2)
        found: list[ScheduledWebhook] = []
        while partition < len(self._partitions) and len(found) < limit:
            source = PageSource(partition, "webhooks")
            page = await self._page(source, None, first, limit - len(found), " ".join(_FIELDS))
            found += [_webhook(*row) for row in page.rows]
            partition, first = (partition + 1, 0) if page.next < 0 else (partition, page.next)
        more = partition < len(self._partitions)
        return WebhooksPage(found, page_cursor(partition, first) if more else None)

    async def _page(
        self,
        source: PageSource,
        wanted: TransactionFilter | None,
        first: int,
        count: int,
        fields: str,
        bytes_max: int = PAGE_BYTES_MAX,
    ) -> PageReply:
        partition, name, group = source
        given = wanted or TransactionFilter(None)
        filters = (given.pipeline, given.owner, given.status or "", given.reason)
        args = PageArgs(name, group, first, count, READ_MAX, bytes_max, *filters, fields)
        found: PageReply = await self._runtime.call(PAGE, partition, args)
        return found


def _moment_of(after: str) -> tuple[int, str]:
    moment, _, id = after.removeprefix(ARCHIVE).partition(":")
    (number,) = cursor_numbers(moment, 1)
    if number > MOMENT_MAX:
        raise InputInvalid(f"{after[:100]!r} is not a page cursor; use `next` of the page before")
    return number, id if id == "~" else check_transaction_id(id)


def _summary_of(transaction: Transaction) -> TransactionSummary:
    return msgspec.convert(transaction, TransactionSummary, from_attributes=True)


def _summary(id: bytes, values: Sequence[bytes]) -> TransactionSummary:
    fields = dict(zip(_FIELDS, (value.decode() for value in values), strict=True))
    group, pipeline, owner = fields["label"].split("|")
    status = TransactionStatus(fields["status"])
    created_ms = int(fields["created"])
    moments = (int(fields[name] or 0) for name in ("completed", "updated", "taken"))
    return TransactionSummary(
        id=id.decode(),
        status=status,
        owner=owner,
        pipeline=pipeline,
        node_group=group,
        created_ms=created_ms,
        updated_ms=max(created_ms, *moments),
        completed_ms=int(fields["completed"]) if fields["completed"] else None,
        step=int(fields["step"] or 0),
        node=fields["node"] or None,
        wake_ms=int(fields["wake"])
        if fields["wake"] and status is TransactionStatus.SLEEPING
        else None,
        switch=(fields["switch"] or None) if status is TransactionStatus.SLEEPING else None,
        waits_for_step=awaited_step(fields["waits"])
        if status is TransactionStatus.QUEUED
        else None,
        external_id=fields["externalId"] or None,
        note=fields["note"] or None,
        reason=fields["reason"] or None,
        tries=faults_of(fields["faults"])[0],
        crashes=faults_of(fields["faults"])[1],
    )


def _webhook(id: bytes, score: bytes, values: Sequence[bytes]) -> ScheduledWebhook:
    fields = dict(zip(_FIELDS, (value.decode() for value in values), strict=True))
    _, pipeline, owner = fields["label"].split("|")
    return ScheduledWebhook(
        transaction_id=id.decode(),
        pipeline=pipeline,
        owner=owner,
        status=TransactionStatus(fields["status"]),
        url=redacted(fields["webhook"]),
        tries=int(fields["hookTries"] or 0),
        next_ms=int(float(score)),
        error=fields["hookError"] or None,
    )
