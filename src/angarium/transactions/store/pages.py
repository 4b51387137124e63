"""Pages of transaction summaries for people, without the transactions' data.

A transaction that changes its status between two pages may appear twice or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script
from angarium.transactions import keys as transactions_keys
from angarium.transactions.model import TransactionStatus, awaited_step
from angarium.transactions.store.keys import TransactionKeys

PAGE = load_script("angarium.transactions", "page_transactions")
# A page reads at most this many entries, because its script blocks Redis. The next page continues.
READ_MAX = 1_000
_FIELDS = (
    "label", "status", "created", "updated", "taken", "completed", "step", "node", "wake",
    "switch", "externalId", "note", "webhook", "hookTries", "hookError", "waits",
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
    status: TransactionStatus
    pipeline: str = ""
    owner: str = ""


class TransactionPages:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._keys = TransactionKeys(runtime)

    def sources(
        self, status: TransactionStatus, groups: Sequence[str]
    ) -> list[tuple[str, int, str]]:
        """(kind, partition, key) of every list and sorted set with transactions of a status."""
        found: list[tuple[str, int, str]] = []
        for partition in self._keys.partitions:
            if status is TransactionStatus.QUEUED:
                names = self._keys.queues(partition, groups)
                found += [("list", partition, name) for name in names]
                waiting = self._keys.name(transactions_keys.WAITING_DEADLINES, partition)
                found.append(("zset", partition, waiting))
                continue
            key, kind = transactions_keys.TO_ARCHIVE, "newest"
            if status is TransactionStatus.RUNNING:
                key, kind = transactions_keys.PROCESSING, "zset"
            elif status is TransactionStatus.SLEEPING:
                key, kind = transactions_keys.SLEEPING, "zset"
            found.append((kind, partition, self._keys.name(key, partition)))
        return found

    async def rows(
        self, source: tuple[str, int, str], filter: TransactionFilter, first: int, count: int
    ) -> tuple[list[TransactionSummary], int | None]:
        """Summaries from one source, and the index where the next page begins (None at the end)."""
        after, found = await self._page(source, filter, first, count)
        return [_summary(each) for each in found], after

    async def webhooks(
        self, partition: int, first: int, count: int
    ) -> tuple[list[ScheduledWebhook], int | None]:
        """In the order of their next attempts."""
        name = self._keys.name(transactions_keys.WEBHOOKS, partition)
        after, found = await self._page(("zset", partition, name), None, first, count)
        return [_webhook(each) for each in found], after

    async def _page(
        self,
        source: tuple[str, int, str],
        filter: TransactionFilter | None,
        first: int,
        count: int,
    ) -> tuple[int | None, list[list[bytes]]]:
        kind, partition, name = source
        filters = ("", "", "") if filter is None else (filter.pipeline, filter.owner, filter.status)
        args = (kind, first, count, READ_MAX, *filters, len(_FIELDS), *_FIELDS)
        names = [self._keys.stem(transactions_keys.STATE, partition), name]
        after, *found = await self._runtime.run(PAGE, partition, names, args)
        return (None if after < 0 else int(after)), found


def _summary(values: Sequence[bytes]) -> TransactionSummary:
    fields = dict(zip(_FIELDS, (value.decode() for value in values[2:]), strict=True))
    group, pipeline, owner = fields["label"].split("|")
    status = TransactionStatus(fields["status"])
    created_ms = int(fields["created"])
    moments = (int(fields[name] or 0) for name in ("completed", "updated", "taken"))
    return TransactionSummary(
        id=values[0].decode(),
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
    )


def _webhook(values: Sequence[bytes]) -> ScheduledWebhook:
    fields = dict(zip(_FIELDS, (value.decode() for value in values[2:]), strict=True))
    _, pipeline, owner = fields["label"].split("|")
    return ScheduledWebhook(
        transaction_id=values[0].decode(),
        pipeline=pipeline,
        owner=owner,
        status=TransactionStatus(fields["status"]),
        url=fields["webhook"],
        tries=int(fields["hookTries"] or 0),
        next_ms=int(float(values[1])),
        error=fields["hookError"] or None,
    )
