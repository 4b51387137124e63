"""Work that one process at a time leases: transactions to archive and webhooks to send."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from angarium.runtime.lease import GrantStatus
from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition
from angarium.transactions import keys
from angarium.transactions.model import Transaction, pairs_of, transaction_of
from angarium.transactions.settings import TransactionsSettings
from angarium.transactions.transitions import (
    BATCH_STEMS,
    CHANNELS,
    PACKAGE,
    STATE,
    TransactionItem,
)

# An attempt must be over, one way or the other, before the next one is due.
ATTEMPT_MARGIN_MS = 1_000
# Of the process that has the role. Empty: it still works on leased items. Idle: all results are
# reported, so the role passes on without a grace period. Leaving: idle, and it stops.
HolderState = Literal["", "idle", "leaving"]


class ArchiveArgs(NamedTuple):
    """With `external_ms`, externalIds of stored transactions end when they are no longer unique."""

    node: str
    lock1_ms: int
    lock2_ms: int
    limit: int
    holder_state: str
    external_ms: int = 0


class ArchiveLease(NamedTuple):
    """A row is an id, then names and values of its state in turn."""

    grant: str
    rows: list[Any]


TO_ARCHIVE = Transition(
    PACKAGE,
    "transactions_to_archive",
    keys={
        "to_archive": keys.TO_ARCHIVE,
        "dead": keys.DEAD_LETTERS,
        "webhooks": keys.WEBHOOKS,
        "lock1": keys.ARCHIVE_LOCK1,
        "lock2": keys.ARCHIVE_LOCK2,
    },
    stems={
        **BATCH_STEMS,
        "states": keys.STATE,
        "externals": keys.EXTERNAL_ID,
        "quota": keys.OWNER_QUOTA,
    },
    channels=CHANNELS,
    args=ArchiveArgs,
    item=TransactionItem,
    item_keys=STATE,
    replies={"leased": ArchiveLease},
    one_reply=True,
)


class WebhookArgs(NamedTuple):
    """`jitter` is from 0 to 1. `busy` has the requests in flight, «host=number» with spaces."""

    node: str
    lock1_ms: int
    lock2_ms: int
    retries_max: int
    delay_ms: int
    factor: float
    jitter: float
    fail_limit: int
    fail_ms: int
    disable_ms: int
    limit: int
    holder_state: str
    receiver_max: int
    busy: str


class WebhookItem(NamedTuple):
    """The result of one attempt; `outcome` is delivered or failed."""

    transaction_id: str
    version: str
    outcome: str
    problem: str


class WebhookLease(NamedTuple):
    """An alert is «disabled, url» or «given_up, url, id». A row is id, url, version, attempt, then
    names and values of the state in turn."""

    grant: str
    alerts: list[Any]
    rows: list[Any]


TO_PROCESS = Transition(
    PACKAGE,
    "webhooks_to_process",
    keys={
        "webhooks": keys.WEBHOOKS,
        "lock1": keys.WEBHOOK_LOCK1,
        "lock2": keys.WEBHOOK_LOCK2,
    },
    stems={**BATCH_STEMS, "states": keys.STATE, "counters": keys.WEBHOOK_COUNTER},
    channels=CHANNELS,
    args=WebhookArgs,
    item=WebhookItem,
    item_keys=STATE,
    replies={"leased": WebhookLease},
    one_reply=True,
)


@dataclass(frozen=True)
class ArchiveBatch:
    """Transactions to archive. `grant` says whether this process has the role."""

    grant: GrantStatus
    transactions: Sequence[Transaction]


@dataclass(frozen=True)
class WebhookResult:
    """The result of one attempt. `version` names the report that was sent. Empty `problem` means
    success."""

    transaction_id: str
    version: str
    problem: str = ""


@dataclass(frozen=True)
class DueWebhook:
    url: str
    version: str
    attempt: int
    transaction: Transaction


@dataclass(frozen=True)
class WebhookAlert:
    """A message to the administrator. `what` is `given_up` or `disabled`."""

    what: str
    url: str
    transaction_id: str | None = None


@dataclass(frozen=True)
class WebhookBatch:
    grant: GrantStatus
    alerts: Sequence[WebhookAlert]
    webhooks: Sequence[DueWebhook]


class TransactionLeases:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._settings = settings = runtime.settings.group(TransactionsSettings)
        self._locks_ms = (
            settings.persisting_permission_lock1_period * 1000,
            settings.persisting_permission_lock2_period * 1000,
        )

    async def to_archive(
        self, partition: int, node: str, stored: Sequence[str], count: int, state: HolderState = ""
    ) -> ArchiveBatch:
        """Report the ids of committed transactions, and lease up to `count` more."""
        external_ms = self._settings.externalid_uniqueness_period * 1000
        args = ArchiveArgs(node, *self._locks_ms, count, state, external_ms)
        items = [TransactionItem(each) for each in stored]
        found = await self._runtime.call(TO_ARCHIVE, partition, args, items)
        rows = [transaction_of(row[0].decode(), pairs_of(row, 1)) for row in found.rows]
        return ArchiveBatch(GrantStatus(found.grant), rows)

    async def webhooks(
        self,
        partition: int,
        node: str,
        results: Sequence[WebhookResult],
        count: int,
        state: HolderState = "",
        in_flight: Mapping[str, int] | None = None,
    ) -> WebhookBatch:
        """Report the results of attempts, and lease up to `count` due webhooks. `in_flight` has the
        requests to each host, which has a limit of its own."""
        settings = self._settings
        delay_ms = max(
            settings.webhook_retry_delay_ms, settings.webhook_timeout_ms + ATTEMPT_MARGIN_MS
        )
        items = [
            WebhookItem(
                each.transaction_id,
                each.version,
                "failed" if each.problem else "delivered",
                each.problem,
            )
            for each in results
        ]
        args = WebhookArgs(
            node, *self._locks_ms, settings.max_webhook_retries, delay_ms,
            settings.webhook_retry_factor, round(random.random(), 4), settings.webhook_fail_limit,
            settings.webhook_fail_period * 1000, settings.webhook_disable_period * 1000, count,
            state, settings.webhook_receiver_concurrency,
            " ".join(f"{host}={number}" for host, number in (in_flight or {}).items()),
        )  # fmt: skip
        found = await self._runtime.call(TO_PROCESS, partition, args, items)
        return WebhookBatch(
            GrantStatus(found.grant),
            [WebhookAlert(*(part.decode() for part in each)) for each in found.alerts],
            [_due_webhook(row) for row in found.rows],
        )


def _due_webhook(row: list[bytes]) -> DueWebhook:
    id, url, version, attempt = (part.decode() for part in row[:4])
    return DueWebhook(url, version, int(attempt), transaction_of(id, pairs_of(row, 4)))
