"""The manifest of transactions: pipelines of steps on node groups, webhooks, archive."""

from __future__ import annotations

from angarium.runtime.module import Module, Rate, Role, life_cycle, other_events
from angarium.transactions import keys
from angarium.transactions.limits import TransactionsLimits

TRANSACTIONS = Module(
    "transactions",
    keys=keys.KEYS,
    settings="angarium.transactions.settings:TransactionsSettings",
    limits=TransactionsLimits,
    events=(
        *life_cycle(
            "transaction",
            accept="started",
            step="taken advanced progressed slept woken called resumed switched cancel_asked "
            "returned recovered step_awaited",
            end={"delivered": "completed", "cancelled": "cancelled", "expired": "expired"},
            beside="notified webhook_tried webhook_failed webhook_delivered webhook_given_up "
            "webhook_cancelled archived",
            paused="returned slept called recovered step_awaited",
            retried="returned recovered webhook_failed",
            archived="archived",
        ),
        # An id without a state has no account: its account ended long ago, or never began.
        *other_events("pipeline_stored dropped"),
    ),
    ids_once=("transaction",),
    roles=(
        Role("archiver", "angarium.transactions.archiver"),
        Role("webhooks", "angarium.transactions.webhooks"),
        Role("node", "angarium.transactions.node", needs="step"),
    ),
    rates=(
        Rate("started", "node", "taken", "taken"),
        Rate("completed", "node", "ended_*", "ended"),
    ),
    http="angarium.transactions.http",
    overview="angarium.transactions.overview:TransactionsSampler",
)
