"""Work that one process at a time is given: completed transactions to archive, webhooks to send."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from angarium.redis.connection import Argument
from angarium.runtime import keyspace as keys
from angarium.runtime.lease import GrantStatus
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script
from angarium.transactions.model import Transaction, pairs_of, transaction_of
from angarium.transactions.store.places import Places

TO_ARCHIVE = load_script("angarium.transactions", "transactions_to_archive")
TO_PROCESS = load_script("angarium.transactions", "webhooks_to_process")
# An attempt must be over, one way or the other, before the next may be handed out.
ATTEMPT_MARGIN_MS = 1_000
# Nothing left in hand, all reported: the role needs no grace. Leaving: it is not wanted again.
Hand = Literal["", "idle", "leaving"]


@dataclass(frozen=True)
class Due:
    """Transactions to archive, and whether this process has the role."""

    grant: GrantStatus
    transactions: Sequence[Transaction]


@dataclass(frozen=True)
class WebhookResult:
    """`version` tells which report of the transaction it was; empty `problem` is a success."""

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
class News:
    """What the administrator is told."""

    what: str
    url: str
    transaction_id: str | None = None


@dataclass(frozen=True)
class DueWebhooks:
    grant: GrantStatus
    news: Sequence[News]
    webhooks: Sequence[DueWebhook]


class HandoutStore:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._settings = settings = runtime.settings.transactions
        self._places = Places(runtime)
        self._locks_ms = (
            settings.persisting_permission_lock1_period * 1000,
            settings.persisting_permission_lock2_period * 1000,
        )

    async def to_archive(
        self, partition: int, node: str, stored: Sequence[str], count: int, hand: Hand = ""
    ) -> Due:
        """Say what is stored for good, and ask for up to `count` more."""
        places = self._places
        names = [
            *places.statistics(partition),
            places.name(keys.TO_ARCHIVE, partition),
            places.name(keys.WEBHOOKS, partition),
            places.name(keys.ARCHIVE_LOCK1, partition),
            places.name(keys.ARCHIVE_LOCK2, partition),
            places.stem(keys.STATE, partition),
        ]
        args: list[Argument] = [
            *places.channels, node, *self._locks_ms, count, len(stored), *stored, hand,
        ]  # fmt: skip
        grant, *rows = await self._runtime.run(TO_ARCHIVE, partition, names, args)
        found = [transaction_of(row[0].decode(), pairs_of(row, 1)) for row in rows]
        return Due(GrantStatus(grant.decode()), found)

    async def webhooks(
        self,
        partition: int,
        node: str,
        results: Sequence[WebhookResult],
        count: int,
        hand: Hand = "",
    ) -> DueWebhooks:
        """Say how attempts went, and ask for up to `count` more."""
        places, settings = self._places, self._settings
        names = [
            *places.statistics(partition),
            places.name(keys.WEBHOOKS, partition),
            places.name(keys.WEBHOOK_LOCK1, partition),
            places.name(keys.WEBHOOK_LOCK2, partition),
            places.stem(keys.STATE, partition),
            places.stem(keys.WEBHOOK_COUNTER, partition),
        ]
        delay_ms = max(
            settings.webhook_retry_delay_ms, settings.webhook_timeout_ms + ATTEMPT_MARGIN_MS
        )
        told: list[str] = []
        for each in results:
            outcome = "failed" if each.problem else "delivered"
            told += (each.transaction_id, each.version, outcome, each.problem)
        args: list[Argument] = [
            *places.channels, node, *self._locks_ms, settings.max_webhook_retries, delay_ms,
            str(settings.webhook_retry_factor), f"{random.random():.4f}",
            settings.webhook_fail_limit, settings.webhook_fail_period * 1000,
            settings.webhook_disable_period * 1000, count, len(results), *told, hand,
        ]  # fmt: skip
        grant, news, *rows = await self._runtime.run(TO_PROCESS, partition, names, args)
        return DueWebhooks(
            GrantStatus(grant.decode()),
            [News(*(part.decode() for part in each)) for each in news],
            [_due_webhook(row) for row in rows],
        )


def _due_webhook(row: list[bytes]) -> DueWebhook:
    id, url, version, attempt = (part.decode() for part in row[:4])
    return DueWebhook(url, version, int(attempt), transaction_of(id, pairs_of(row, 4)))
