"""Pages of transactions for people: in short, without their data, from where the last page ended.

What moves between two pages may be seen twice or not at all; a page is a look, not an account.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from angarium.runtime import keyspace as keys
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script
from angarium.transactions.model import Status, awaited_step
from angarium.transactions.store.places import Places

PAGE = load_script("angarium.transactions", "page_transactions")
# A page that filters gives up after so many and says where to go on: it holds up Redis meanwhile.
LOOKED_MAX = 1_000
_FIELDS = (
    "label", "status", "created", "updated", "taken", "completed", "step", "node", "wake",
    "switch", "externalId", "note", "webhook", "hookTries", "hookError", "waits",
)  # fmt: skip


class Row(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A transaction in a list."""

    id: str
    status: Status
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


class Hook(msgspec.Struct, frozen=True):
    """A webhook that is due, and when it is tried next."""

    transaction_id: str
    pipeline: str
    owner: str
    status: Status
    url: str
    tries: int
    next_ms: int
    error: str | None


@dataclass(frozen=True)
class Wanted:
    status: Status
    pipeline: str = ""
    owner: str = ""


class TransactionListing:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._places = Places(runtime)

    def sources(self, status: Status, groups: Sequence[str]) -> list[tuple[str, int, str]]:
        """Kind, partition and key of every place that holds transactions of a status."""
        found: list[tuple[str, int, str]] = []
        for partition in self._places.partitions:
            if status is Status.QUEUED:
                names = self._places.queues(partition, groups)
                found += [("list", partition, name) for name in names]
                waiting = self._places.name(keys.WAITING_DEADLINES, partition)
                found.append(("zset", partition, waiting))
                continue
            key, kind = keys.TO_ARCHIVE, "newest"
            if status is Status.RUNNING:
                key, kind = keys.PROCESSING, "zset"
            elif status is Status.SLEEPING:
                key, kind = keys.SLEEPING, "zset"
            found.append((kind, partition, self._places.name(key, partition)))
        return found

    async def rows(
        self, source: tuple[str, int, str], wanted: Wanted, first: int, count: int
    ) -> tuple[list[Row], int | None]:
        """From one place, beginning at `first`; where to go on there, None at its end."""
        kind, partition, name = source
        after, found = await self._page(kind, partition, name, wanted, first, count)
        return [_row(each) for each in found], after

    async def webhooks(
        self, partition: int, first: int, count: int
    ) -> tuple[list[Hook], int | None]:
        """Those that are tried next come first."""
        name = self._places.name(keys.WEBHOOKS, partition)
        after, found = await self._page("zset", partition, name, None, first, count)
        return [_hook(each) for each in found], after

    async def _page(
        self, kind: str, partition: int, name: str, wanted: Wanted | None, first: int, count: int
    ) -> tuple[int | None, list[list[bytes]]]:
        filters = ("", "", "") if wanted is None else (wanted.pipeline, wanted.owner, wanted.status)
        args = (kind, first, count, LOOKED_MAX, *filters, len(_FIELDS), *_FIELDS)
        names = [self._places.stem(keys.STATE, partition), name]
        after, *found = await self._runtime.run(PAGE, partition, names, args)
        return (None if after < 0 else int(after)), found


def _row(values: Sequence[bytes]) -> Row:
    fields = dict(zip(_FIELDS, (value.decode() for value in values[2:]), strict=True))
    group, pipeline, owner = fields["label"].split("|")
    status = Status(fields["status"])
    created_ms = int(fields["created"])
    moments = (int(fields[name] or 0) for name in ("completed", "updated", "taken"))
    return Row(
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
        wake_ms=int(fields["wake"]) if fields["wake"] and status is Status.SLEEPING else None,
        switch=(fields["switch"] or None) if status is Status.SLEEPING else None,
        waits_for_step=awaited_step(fields["waits"]) if status is Status.QUEUED else None,
        external_id=fields["externalId"] or None,
        note=fields["note"] or None,
    )


def _hook(values: Sequence[bytes]) -> Hook:
    fields = dict(zip(_FIELDS, (value.decode() for value in values[2:]), strict=True))
    _, pipeline, owner = fields["label"].split("|")
    return Hook(
        transaction_id=values[0].decode(),
        pipeline=pipeline,
        owner=owner,
        status=Status(fields["status"]),
        url=fields["webhook"],
        tries=int(fields["hookTries"] or 0),
        next_ms=int(float(values[1])),
        error=fields["hookError"] or None,
    )
