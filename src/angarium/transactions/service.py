"""The operations of this module: start, get, poll, list, cancel, set a switch, load pipelines.

HTTP, the command line and the Python client call this one class. It checks the input, and looks for
a transaction in Redis first, then in the archive, then in the lake.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from angarium.runtime.application import Application
from angarium.runtime.errors import InputInvalid
from angarium.runtime.outbound import check_url
from angarium.runtime.runtime import Runtime
from angarium.runtime.text import check_text
from angarium.transactions.dead_letters import TransactionDeadLetters
from angarium.transactions.definitions import load_definitions
from angarium.transactions.errors import TransactionFinished, TransactionUnknown
from angarium.transactions.model import (
    PollResult,
    Transaction,
    TransactionStart,
    TransactionStarted,
    TransactionStatus,
    check_external_id,
    check_name,
    check_transaction_id,
)
from angarium.transactions.pages import (
    TransactionFilter,
    TransactionPages,
    TransactionsPage,
    WebhooksPage,
    WholeTransactionsPage,
)
from angarium.transactions.pipeline import PipelineDefinition
from angarium.transactions.pipeline_store import PipelineStore
from angarium.transactions.queries import TransactionHealthReport, TransactionQueries
from angarium.transactions.statistics import StatisticsInterval, StatisticsLevel
from angarium.transactions.store import TransactionStore

if TYPE_CHECKING:
    from angarium.transactions.archive import TransactionArchive

StateLookup = Callable[[str], Awaitable[bytes | None]]
"""Finds the state of an ended transaction by its id, as JSON."""

URL_BYTES_MAX = 2_000
SWITCH_BYTES_MAX = 10_000


class TransactionsService:
    """Callers must `close` it. The database of the archive is opened on first use only."""

    def __init__(
        self,
        runtime: Runtime,
        app: Application | None = None,
        lake_lookup: StateLookup | None = None,
    ) -> None:
        self._settings = runtime.settings
        self._lake_lookup = lake_lookup
        self._app = app or Application()
        self._store = runtime.store(TransactionStore)
        self._queries = TransactionQueries(runtime)
        self._pages = TransactionPages(runtime)
        self._pipelines = runtime.store(PipelineStore)
        self._archive: TransactionArchive | None = None

    @property
    def notify_channel(self) -> str:
        return self._store.notify_channel

    @property
    def events_channel(self) -> str:
        return self._store.events_channel

    async def start(self, start: TransactionStart) -> TransactionStarted:
        check_name(start.pipeline, "pipeline")
        check_name(start.owner, "owner")
        if start.external_id is not None:
            check_external_id(start.external_id)
        if start.webhook is not None:
            self._check_webhook(start.webhook)
        return await self._store.start(start)

    async def get(self, transaction_id: str) -> Transaction:
        """From Redis, the archive or the lake. Raises TransactionUnknown."""
        found = await self._store.find(check_transaction_id(transaction_id))
        if found is None:
            found = await self._find_archived(transaction_id)
        if found is None:
            raise TransactionUnknown(f"there is no transaction {transaction_id!r}")
        return found

    async def check_owner(self, transaction_id: str, owner: str) -> None:
        """Raises the error of an unknown id, so that a foreign id reveals nothing."""
        if (await self.get(transaction_id)).owner != owner:
            raise TransactionUnknown(f"there is no transaction {transaction_id!r}")

    async def poll(self, transaction_id: str) -> PollResult:
        """Like `get`, for a client that waits for the end."""
        found = await self._store.poll(check_transaction_id(transaction_id))
        return found or PollResult(await self.get(transaction_id))

    async def record_reply(self, transaction: Transaction) -> None:
        """Record that a response with the final status was written to a waiting client."""
        await self._store.record_reply(transaction)

    async def get_by_external_id(self, owner: str, external_id: str) -> Transaction:
        check_name(owner, "owner")
        check_external_id(external_id)
        id = await self._store.find_by_external_id(owner, external_id)
        if id is not None:
            return await self.get(id)
        found = await self.archive.find_by_external_id(owner, external_id)
        if found is None:
            raise TransactionUnknown(f"{owner} has no transaction with this externalId")
        return found

    async def page(
        self, wanted: TransactionFilter, limit: int, after: str | None = None
    ) -> TransactionsPage:
        """Summaries of the transactions of one status: in the order of their queue, and for a
        final status the last completed first, from Redis and then from the archive."""
        groups = await self._groups_of(wanted.status)
        return await self._pages.summaries(wanted, groups, limit, after, self._archive_page)

    async def page_whole(
        self, wanted: TransactionFilter, limit: int, after: str | None = None
    ) -> WholeTransactionsPage:
        """As `page`, with the transactions' data."""
        groups = await self._groups_of(wanted.status)
        return await self._pages.whole(wanted, groups, limit, after, self._archive_page)

    async def newest_failures(self, limit: int) -> list[str]:
        """Transactions that failed without a dead letter, among the last that ended; `limit` at
        most in each partition and of each status."""
        statuses = (TransactionStatus.FAILED, TransactionStatus.INTERNAL_ERROR)
        found = [await self._pages.newest_without_dead_letter(each, limit) for each in statuses]
        return [id for some in found for id in some]

    async def page_webhooks(self, limit: int, after: str | None = None) -> WebhooksPage:
        """Scheduled webhooks in the order of their next attempts."""
        return await self._pages.webhooks(limit, after)

    async def _archive_page(
        self, wanted: TransactionFilter, count: int, before: tuple[int, str] | None
    ) -> list[Transaction]:
        assert wanted.status is not None  # dead letters are in Redis only
        return await self.archive.page(
            wanted.status, count, pipeline=wanted.pipeline, owner=wanted.owner, before=before
        )

    async def _groups_of(self, status: TransactionStatus | None) -> Sequence[str]:
        return await self._queries.groups() if status is TransactionStatus.QUEUED else ()

    async def cancel(self, transaction_id: str) -> str:
        check_transaction_id(transaction_id)
        return await self._change(transaction_id, self._store.cancel(transaction_id))

    async def set_switch(self, transaction_id: str, switch: str, value: str) -> str:
        check_name(switch, "switch")
        if len(check_text(value, "the value of a switch").encode()) > SWITCH_BYTES_MAX:
            raise InputInvalid(f"a switch's value may have at most {SWITCH_BYTES_MAX} bytes")
        check_transaction_id(transaction_id)
        change = self._store.set_switch(transaction_id, switch, value)
        return await self._change(transaction_id, change)

    def dead_letters(self, pipeline: str = "", owner: str = "") -> TransactionDeadLetters:
        """Transactions that ended because a step failed too often, of a pipeline or owner if it is
        given."""
        return TransactionDeadLetters(self._store, self.page, pipeline, owner)

    async def rerun(self, transaction_id: str, data: bytes = b"") -> str:
        """Queue a dead letter again at the step that failed, with new data if it is given."""
        check_transaction_id(transaction_id)
        return await self._change(transaction_id, self._store.rerun(transaction_id, data))

    async def drop(self, transaction_id: str) -> str:
        """Give up a dead letter. It is archived."""
        check_transaction_id(transaction_id)
        return await self._change(transaction_id, self._store.drop(transaction_id))

    async def load(self, pipelines: Sequence[PipelineDefinition]) -> dict[str, int]:
        """Store definitions; name → version."""
        return await load_definitions(self._pipelines, pipelines, self._app)

    async def pipelines(self) -> dict[str, PipelineDefinition]:
        return (await self._pipelines.all())[0]

    async def versions(self, name: str) -> list[PipelineDefinition]:
        """Newest first."""
        found = await self._pipelines.versions(check_name(name, "pipeline"))
        return [found[number] for number in sorted(found, reverse=True)]

    async def statistics(self, level: StatisticsLevel, intervals: int) -> list[StatisticsInterval]:
        return await self._queries.statistics(level, min(intervals, level.intervals_max))

    async def health_report(self, longest_running: int) -> TransactionHealthReport:
        """With up to `longest_running` of the transactions that have been running longest."""
        return await self._queries.health_report(await self._queries.groups(), longest_running)

    @property
    def archive(self) -> TransactionArchive:
        if self._archive is None:
            # Imported on first use, because it imports SQLAlchemy.
            from angarium.transactions.archive import TransactionArchive

            self._archive = TransactionArchive(self._settings.database_url)
        return self._archive

    async def close(self) -> None:
        if self._archive is not None:
            await self._archive.close()
            self._archive = None

    async def _change(self, transaction_id: str, change: Awaitable[str]) -> str:
        """A transaction that only the archive has is finished, not unknown."""
        try:
            return await change
        except TransactionUnknown:
            if await self._find_archived(transaction_id) is None:
                raise
            raise TransactionFinished(f"transaction {transaction_id!r} has ended already") from None

    async def _find_archived(self, transaction_id: str) -> Transaction | None:
        found = await self.archive.find(transaction_id)
        if found is not None or self._lake_lookup is None:
            return found
        state = await self._lake_lookup(transaction_id)
        return None if state is None else msgspec.json.decode(state, type=Transaction)

    def _check_webhook(self, url: str) -> None:
        if len(url.encode(errors="replace")) > URL_BYTES_MAX or not url.isprintable():
            raise InputInvalid(f"a webhook URL may have at most {URL_BYTES_MAX} printable bytes")
        if not url.startswith(("http://", "https://")):
            raise InputInvalid(f"{url[:100]!r} is not an http or https URL")
        check_url(url, allow_private=self._settings.allow_private_addresses)
