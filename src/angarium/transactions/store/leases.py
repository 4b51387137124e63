"""Work that one process at a time leases: transactions to archive and webhooks to send."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from angarium.redis.connection import Argument
from angarium.runtime.lease import GrantStatus
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script
from angarium.transactions import keys as transactions_keys
from angarium.transactions.model import Transaction, pairs_of, transaction_of
from angarium.transactions.settings import TransactionsSettings
from angarium.transactions.store.keys import TransactionKeys

TO_ARCHIVE = load_script("angarium.transactions", "transactions_to_archive")
TO_PROCESS = load_script("angarium.transactions", "webhooks_to_process")
# An attempt must be over, one way or the other, before the next one is due.
ATTEMPT_MARGIN_MS = 1_000
# Of the process that has the role. Empty: it still works on leased items. Idle: all results are
# reported, so the role passes on without a grace period. Leaving: idle, and it stops.
HolderState = Literal["", "idle", "leaving"]


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
        self._keys = TransactionKeys(runtime)
        self._locks_ms = (
            settings.persisting_permission_lock1_period * 1000,
            settings.persisting_permission_lock2_period * 1000,
        )

    async def to_archive(
        self, partition: int, node: str, stored: Sequence[str], count: int, state: HolderState = ""
    ) -> ArchiveBatch:
        """Report the ids of committed transactions, and lease up to `count` more."""
        keys = self._keys
        names = [
            *keys.statistics(partition),
            keys.name(transactions_keys.TO_ARCHIVE, partition),
            keys.name(transactions_keys.WEBHOOKS, partition),
            keys.name(transactions_keys.ARCHIVE_LOCK1, partition),
            keys.name(transactions_keys.ARCHIVE_LOCK2, partition),
            keys.stem(transactions_keys.STATE, partition),
        ]
        args: list[Argument] = [
            *keys.channels, node, *self._locks_ms, count, len(stored), *stored, state,
        ]  # fmt: skip
        grant, *rows = await self._runtime.run(TO_ARCHIVE, partition, names, args)
        found = [transaction_of(row[0].decode(), pairs_of(row, 1)) for row in rows]
        return ArchiveBatch(GrantStatus(grant.decode()), found)

    async def webhooks(
        self,
        partition: int,
        node: str,
        results: Sequence[WebhookResult],
        count: int,
        state: HolderState = "",
    ) -> WebhookBatch:
        """Report the results of attempts, and lease up to `count` due webhooks."""
        keys, settings = self._keys, self._settings
        names = [
            *keys.statistics(partition),
            keys.name(transactions_keys.WEBHOOKS, partition),
            keys.name(transactions_keys.WEBHOOK_LOCK1, partition),
            keys.name(transactions_keys.WEBHOOK_LOCK2, partition),
            keys.stem(transactions_keys.STATE, partition),
            keys.stem(transactions_keys.WEBHOOK_COUNTER, partition),
        ]
        delay_ms = max(
            settings.webhook_retry_delay_ms, settings.webhook_timeout_ms + ATTEMPT_MARGIN_MS
        )
        reported: list[str] = []
        for each in results:
            outcome = "failed" if each.problem else "delivered"
            reported += (each.transaction_id, each.version, outcome, each.problem)
        args: list[Argument] = [
            *keys.channels, node, *self._locks_ms, settings.max_webhook_retries, delay_ms,
            str(settings.webhook_retry_factor), f"{random.random():.4f}",
            settings.webhook_fail_limit, settings.webhook_fail_period * 1000,
            settings.webhook_disable_period * 1000, count, len(results), *reported, state,
        ]  # fmt: skip
        grant, alerts, *rows = await self._runtime.run(TO_PROCESS, partition, names, args)
        return WebhookBatch(
            GrantStatus(grant.decode()),
            [WebhookAlert(*(part.decode() for part in each)) for each in alerts],
            [_due_webhook(row) for row in rows],
        )


def _due_webhook(row: list[bytes]) -> DueWebhook:
    id, url, version, attempt = (part.decode() for part in row[:4])
    return DueWebhook(url, version, int(attempt), transaction_of(id, pairs_of(row, 4)))
