"""The Prometheus gauges of this module, which an API process sets every few seconds."""

from __future__ import annotations

from collections import Counter

from prometheus_client import Gauge

from angarium.transactions.client import Transactions
from angarium.transactions.statistics import StatisticsLevel

TRANSACTIONS = Gauge(
    "angarium_transactions", "Transactions by state, nodes without heartbeat, and long polls.",
    ["state"],
)  # fmt: skip
QUEUES = Gauge(
    "angarium_transaction_queue", "Transactions waiting for a node.", ["node_group", "kind"]
)
AWAITED_STEPS = Gauge(
    "angarium_transactions_awaiting_step", "Transactions that wait for a node with a step type.",
    ["node_group", "step_type"],
)  # fmt: skip
EVENTS = Gauge(
    "angarium_transaction_events", "Events of the last five minutes.", ["node_group", "event"]
)


async def update_gauges(transactions: Transactions, polls: int) -> None:
    """`polls` is the number of long polls and event streams of this process."""
    report = await transactions.health_report(1)
    TRANSACTIONS.labels("running").set(report.running)
    TRANSACTIONS.labels("sleeping").set(report.sleeping)
    TRANSACTIONS.labels("to_archive").set(report.to_archive)
    TRANSACTIONS.labels("webhooks_due").set(report.webhooks)
    TRANSACTIONS.labels("silent_nodes").set(sum(not node.alive for node in report.nodes))
    TRANSACTIONS.labels("polls").set(polls)
    for queue in report.queues:
        QUEUES.labels(queue.node_group, queue.kind).set(queue.length)
    AWAITED_STEPS.clear()  # a step type that no transaction waits for any more has no line
    for step in report.awaited_steps:
        AWAITED_STEPS.labels(step.node_group, step.step_type).set(step.transactions)
    await _count_events(transactions)


async def _count_events(transactions: Transactions) -> None:
    """The scripts count events for all processes; this only adds up the last intervals."""
    level, sums = StatisticsLevel.FINE, Counter[tuple[str, str]]()
    for interval in await transactions.statistics(level, level.intervals_max):
        for group, counters in interval.node_groups.items():
            sums.update({(group, event): count for event, count in counters.items()})
    EVENTS.clear()
    for labels, count in sums.items():
        EVENTS.labels(*labels).set(count)
