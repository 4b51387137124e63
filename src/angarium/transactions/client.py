"""Transactions for anyone who is not a node: start, look, wait, cancel, switch.

One object for HTTP, the command line and a user's own code. It checks what comes in, asks Redis
first, then the archive, then whatever else it was given to ask, and answers with values or named
errors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from angarium.runtime.application import Angarium
from angarium.runtime.errors import InputInvalid
from angarium.runtime.outbound import check_url
from angarium.runtime.runtime import Runtime
from angarium.runtime.text import check_text
from angarium.transactions.errors import TransactionFinished, TransactionUnknown
from angarium.transactions.library import load_definitions
from angarium.transactions.model import (
    Polled,
    Start,
    Started,
    Status,
    Transaction,
    check_external_id,
    check_name,
    check_transaction_id,
)
from angarium.transactions.pipeline import Pipeline
from angarium.transactions.statistics import Interval, Level
from angarium.transactions.store import PipelineStore, ReadingStore, TransactionStore
from angarium.transactions.store.reading import Watch

if TYPE_CHECKING:
    from angarium.transactions.archive import Archive

Elsewhere = Callable[[str], Awaitable[bytes | None]]
"""The state of an ended transaction by its id, as JSON, from wherever it was filed."""

URL_BYTES_MAX = 2_000
SWITCH_BYTES_MAX = 10_000


class Transactions:
    """`close` it when done; the archive's database is opened only if it is asked."""

    def __init__(
        self, runtime: Runtime, app: Angarium | None = None, elsewhere: Elsewhere | None = None
    ) -> None:
        self._settings = runtime.settings
        self._elsewhere = elsewhere
        self._app = app or Angarium()
        self._store = TransactionStore(runtime)
        self._reading = ReadingStore(runtime)
        self._pipelines = PipelineStore(runtime)
        self._archive: Archive | None = None

    @property
    def notify_channel(self) -> str:
        return self._store.places.channels[0]

    @property
    def events_channel(self) -> str:
        return self._store.places.events_channel

    async def start(self, start: Start) -> Started:
        check_name(start.pipeline, "pipeline")
        check_name(start.owner, "owner")
        if start.external_id is not None:
            check_external_id(start.external_id)
        if start.webhook is not None:
            self._check_webhook(start.webhook)
        return await self._store.start(start)

    async def get(self, transaction_id: str) -> Transaction:
        """From Redis, else from where it was filed, else TransactionUnknown."""
        found = await self._store.find(check_transaction_id(transaction_id))
        if found is None:
            found = await self._filed(transaction_id)
        if found is None:
            raise TransactionUnknown(f"there is no transaction {transaction_id!r}")
        return found

    async def poll(self, transaction_id: str) -> Polled:
        """The same, for a client that waits for the end."""
        found = await self._store.poll(check_transaction_id(transaction_id))
        return found or Polled(await self.get(transaction_id))

    async def record_reply(self, transaction: Transaction) -> None:
        """The answer with its end was written to a client that waited."""
        await self._store.record_reply(transaction)

    async def get_external(self, owner: str, external_id: str) -> Transaction:
        check_name(owner, "owner")
        check_external_id(external_id)
        id = await self._store.find_external(owner, external_id)
        if id is not None:
            return await self.get(id)
        found = await self.archive.find_external(owner, external_id)
        if found is None:
            raise TransactionUnknown(f"{owner} has no transaction with externalId {external_id!r}")
        return found

    async def listed(
        self, status: Status, count: int, *, pipeline: str = "", owner: str = ""
    ) -> list[Transaction]:
        groups = await self._groups() if status is Status.QUEUED else ()
        found = await self._reading.listed(status, groups, count, pipeline=pipeline, owner=owner)
        if status.final and len(found) < count:
            known = {each.id for each in found}
            older = await self.archive.listed(status, count, pipeline=pipeline, owner=owner)
            found += [each for each in older if each.id not in known]
        return found[:count]

    async def cancel(self, transaction_id: str) -> str:
        check_transaction_id(transaction_id)
        return await self._changed(transaction_id, self._store.cancel(transaction_id))

    async def set_switch(self, transaction_id: str, switch: str, value: str) -> str:
        check_name(switch, "switch")
        if len(check_text(value, "the value of a switch").encode()) > SWITCH_BYTES_MAX:
            raise InputInvalid(f"a switch's value has at most {SWITCH_BYTES_MAX} bytes")
        check_transaction_id(transaction_id)
        change = self._store.set_switch(transaction_id, switch, value)
        return await self._changed(transaction_id, change)

    async def load(self, pipelines: Sequence[Pipeline]) -> dict[str, int]:
        """Store definitions; name → version."""
        return await load_definitions(self._pipelines, pipelines, self._app)

    async def pipelines(self) -> dict[str, Pipeline]:
        return (await self._pipelines.all())[0]

    async def versions(self, name: str) -> list[Pipeline]:
        """Newest first."""
        found = await self._pipelines.versions(check_name(name, "pipeline"))
        return [found[number] for number in sorted(found, reverse=True)]

    async def statistics(self, level: Level, intervals: int) -> list[Interval]:
        return await self._reading.statistics(level, min(intervals, level.intervals_max))

    async def watch(self, elders: int) -> Watch:
        return await self._reading.watch(await self._groups(), elders)

    @property
    def archive(self) -> Archive:
        if self._archive is None:
            from angarium.transactions.archive import Archive  # SQLAlchemy: only when needed

            self._archive = Archive(self._settings.database_url)
        return self._archive

    async def close(self) -> None:
        if self._archive is not None:
            await self._archive.close()
            self._archive = None

    async def _changed(self, transaction_id: str, change: Awaitable[str]) -> str:
        """What is no longer in Redis may be in the archive: then it is not unknown, but ended."""
        try:
            return await change
        except TransactionUnknown:
            if await self._filed(transaction_id) is None:
                raise
            raise TransactionFinished(f"transaction {transaction_id!r} has ended already") from None

    async def _filed(self, transaction_id: str) -> Transaction | None:
        found = await self.archive.find(transaction_id)
        if found is not None or self._elsewhere is None:
            return found
        state = await self._elsewhere(transaction_id)
        return None if state is None else msgspec.json.decode(state, type=Transaction)

    async def _groups(self) -> list[str]:
        known = {each.node_group for each in (await self.pipelines()).values()}
        return sorted(known | set(self._settings.transactions.node_groups))

    def _check_webhook(self, url: str) -> None:
        if len(url.encode(errors="replace")) > URL_BYTES_MAX or not url.isprintable():
            raise InputInvalid(f"a webhook URL has at most {URL_BYTES_MAX} printable bytes")
        if not url.startswith(("http://", "https://")):
            raise InputInvalid(f"{url[:100]!r} is no http or https URL")
        check_url(url, allow_private=self._settings.allow_private_addresses)
