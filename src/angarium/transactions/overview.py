"""Transactions in the overview."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from angarium.runtime.overview import ModuleSample, Notice
from angarium.runtime.runtime import Runtime
from angarium.runtime.text import count_of
from angarium.transactions.queries import AwaitedStep
from angarium.transactions.service import TransactionsService

# Nodes of two applications in one group constantly pass work to each other. Work that waits longer
# than this waits for a node that is missing or overloaded.
STEP_AWAITED_MS = 5_000
# Failures that are counted: more than these need no exact number.
FAILURES_MAX = 100
# A sample sees the newest of the ended transactions. Where many succeed, a failure is among them
# for less than a second, and is remembered for as long as somebody may need to see it.
FAILURE_SHOWN_MS = 600_000


class TransactionsSampler:
    def __init__(self, runtime: Runtime) -> None:
        self._transactions = TransactionsService(runtime)
        self._failures: dict[str, int] = {}  # id → when it was last seen

    async def sample(self, roles: Set[str], now_ms: int) -> ModuleSample:
        health = await self._transactions.health_report(1)
        facts = {
            "queued": sum(queue.length for queue in health.queues),
            "running": health.running,
            "sleeping": health.sleeping,
            "webhooks": health.webhooks,
            "to_archive": health.to_archive,
            "dead": health.dead_letters,
            "failed": await self._failed_lately(now_ms),
            "nodes": len(health.nodes),
            "silent_nodes": sum(not node.alive for node in health.nodes),
        }
        waiting = facts["queued"] + health.running + health.sleeping
        waits = [queue.waiting_ms for queue in health.queues if queue.length]
        notices = [*transactions_notices(facts, health.awaited_steps, roles)]
        return ModuleSample(waiting, facts, max(waits, default=None), facts["dead"], notices)

    async def _failed_lately(self, now_ms: int) -> int:
        """Without dead letters, which have a notice of their own."""
        known = {
            id: seen_ms
            for id, seen_ms in self._failures.items()
            if seen_ms > now_ms - FAILURE_SHOWN_MS
        }
        known |= dict.fromkeys(await self._transactions.newest_failures(FAILURES_MAX), now_ms)
        self._failures = dict([*known.items()][-FAILURES_MAX:])
        return len(self._failures)


def transactions_notices(
    facts: Mapping[str, int], awaited: Sequence[AwaitedStep], roles: Set[str]
) -> Iterator[Notice]:
    if facts["queued"] and "node" not in roles:
        text = f"{count_of(facts['queued'], 'transaction')} queued and no node"
        yield Notice("transactions", "trouble", text, "start one: angarium serve node")
    if facts["webhooks"] and "webhooks" not in roles:
        text = f"{count_of(facts['webhooks'], 'webhook')} due and no process sends them"
        yield Notice("transactions", "trouble", text, "start one: angarium serve webhooks")
    if facts["dead"]:
        text = count_of(facts["dead"], "dead letter")
        yield Notice(
            "transactions", "warning", text, "look at the reasons, then retry or drop them"
        )
    if facts["failed"]:
        more = "at least " if facts["failed"] >= FAILURES_MAX else ""
        text = f"{more}{count_of(facts['failed'], 'transaction')} failed lately"
        page = "transactions?status=failed"
        yield Notice("transactions", "warning", text, "look at the reasons", page)
    if facts["silent_nodes"]:
        text = f"{count_of(facts['silent_nodes'], 'node')} silent"
        yield Notice("transactions", "warning", text, "other nodes take over its transactions")
    for step in awaited:
        if step.waiting_ms >= STEP_AWAITED_MS:
            many = count_of(step.transactions, "transaction")
            text = f"{many} waiting for a node with step '{step.step_type}' ({step.node_group})"
            hint = "start a node whose application has this step, or cancel them"
            yield Notice("transactions", "trouble", text, hint)
