"""The manifest of transactions: pipelines of steps on node groups, webhooks, archive."""

from __future__ import annotations

from angarium.runtime.module import Module, Rate, Role, life_cycle, other_events, reported_metrics
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
            reopen="rerun",
            step="taken advanced progressed slept woken called resumed switched cancel_asked "
            "returned recovered step_awaited step_failed",
            end={
                "delivered": "completed",
                "cancelled": "cancelled",
                "expired": "expired",
                "dead": "dead",
            },
            beside="notified webhook_tried webhook_failed webhook_delivered webhook_given_up "
            "webhook_cancelled discarded archived",
            paused="returned slept called recovered step_awaited step_failed",
            retried="returned recovered step_failed webhook_failed",
            archived="archived discarded",
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
    metrics=(
        *reported_metrics(
            "node",
            counters="""
                taken transactions Taken from the queues.
                refused transactions That could not run when they were taken.
                not_ours transactions Left for nodes that have their steps.
                handed_over transactions Given to nodes that have their next step.
                steps steps Run.
                slept transactions Put to sleep.
                failed_tries tries Of steps that failed.
                recovered transactions Taken from dead nodes.
                lost transactions Taken by another node meanwhile.
                ended_* transactions Ended with this status.
            """,
            gauges="""
                running transactions That run here.
            """,
        ),
        *reported_metrics(
            "archiver",
            counters="""
                archived transactions Stored in the archive.
                removed transactions Removed from the archive after their retention.
            """,
        ),
        *reported_metrics(
            "webhooks",
            counters="""
                delivered webhooks Accepted by their receivers.
                failed webhooks To be tried again.
                given_up webhooks Not tried again.
                disabled receivers Disabled after failures.
            """,
            gauges="""
                sending webhooks In progress.
            """,
        ),
    ),
    http="angarium.transactions.http",
    overview="angarium.transactions.overview:TransactionsSampler",
)
