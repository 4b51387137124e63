"""Samples all modules: waiting work, rates and notices.

A sample reads every module's store and changes nothing. The dashboard's service takes one every few
seconds, however many pages are open. `angarium top` takes its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import msgspec

import angarium
from angarium.conversations.queries import ConversationQueries
from angarium.conversations.views import SendersView, view_senders
from angarium.dispatch.store import DispatchStore, PartitionStatus
from angarium.pickup.listing import PickupListing
from angarium.pickup.store import PickupStore
from angarium.routing.listing_store import RoutingListing
from angarium.routing.role_settings import routing_store
from angarium.runtime.journal import Journal
from angarium.runtime.process_report import ProcessReport, read_processes
from angarium.runtime.runtime import Runtime
from angarium.server.dashboard.notices import Notice, notices
from angarium.server.dashboard.rates import Rates
from angarium.transactions.client import Transactions
from angarium.transactions.store.queries import TransactionHealthReport


class ModuleMetrics(msgspec.Struct, frozen=True):
    """`waiting` counts unfinished work; `oldest_ms` is the age of the oldest.

    `facts` are the module's other metrics, by name.
    """

    name: str
    processes: int
    waiting: int
    oldest_ms: int | None
    dead: int
    facts: dict[str, int]


class JournalSummary(msgspec.Struct, frozen=True):
    """`behind_ms`: the lag of each reader behind the newest entry."""

    entries: int
    events: int
    dropped_events: int
    behind_ms: dict[str, int]


class Overview(msgspec.Struct, frozen=True):
    at_ms: int
    version: str
    modules: list[ModuleMetrics]
    rates: dict[str, float]
    journal: JournalSummary
    processes: list[ProcessReport]
    notices: list[Notice]


class OverviewSampler:
    """A rate covers the time since the sample before."""

    def __init__(self, runtime: Runtime) -> None:
        settings = runtime.settings
        self._runtime = runtime
        self._partitions = range(settings.partitions)
        self._dispatch = runtime.store(DispatchStore)
        self._routing = runtime.store(routing_store)
        self._routing_lengths = RoutingListing(runtime)
        self._conversations = ConversationQueries(runtime)
        self._pickup = runtime.store(PickupStore)
        self._pickup_ages = PickupListing(runtime)
        self._transactions = Transactions(runtime)
        self._journal = Journal(runtime)
        self._rates = Rates()

    async def sample(self) -> Overview:
        now_ms = await self._now_ms()
        processes = await read_processes(self._runtime)
        journal = await self._journal_metrics()
        health = await self._transactions.health_report(1)
        senders = await view_senders(self._conversations)
        modules = [
            await self._dispatch_metrics(processes),
            await self._routing_metrics(processes),
            _transactions_metrics(health, processes),
            await self._conversations_metrics(processes, senders),
            await self._pickup_metrics(processes, now_ms),
        ]
        facts = {module.name: {**module.facts, "waiting": module.waiting} for module in modules}
        return Overview(
            at_ms=now_ms,
            version=angarium.__version__,
            modules=modules,
            rates=self._rates.update(processes, journal.events, now_ms),
            journal=journal,
            processes=processes,
            notices=notices(
                facts,
                _roles(processes),
                journal.dropped_events,
                health.awaited_steps,
                senders.needs,
            ),
        )

    async def _now_ms(self) -> int:
        seconds, micros = await self._runtime.redis.call("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def _journal_metrics(self) -> JournalSummary:
        entries = events = dropped = 0
        behind: dict[str, int] = {}
        for partition in self._partitions:
            status = await self._journal.status(partition)
            entries += status.entries
            events += status.events
            dropped += status.dropped_events
            newest_ms = _moment(status.last_id)
            for reader, position in status.readers.items():
                late_ms = max(0, newest_ms - _moment(position)) if status.entries else 0
                behind[reader] = max(behind.get(reader, 0), late_ms)
        return JournalSummary(entries, events, dropped, behind)

    async def _dispatch_metrics(self, processes: Sequence[ProcessReport]) -> ModuleMetrics:
        found = [await self._dispatch.status(partition) for partition in self._partitions]
        pending, inbox = sum(each.pending for each in found), sum(each.inbox for each in found)
        consumers = await self._dispatch.consumers()
        facts = {
            "pending": pending,
            "inbox": inbox,
            "processed": sum(each.processed for each in found),
            "partitions": len(found),
            "without_leader": sum(each.leader is None for each in found),
            "consumers": len(consumers),
            "dead": sum(each.dead for each in found),
        }
        oldest_ms = _oldest(found)
        return ModuleMetrics(
            "dispatch", _count(processes, "dispatcher", "worker"), pending + inbox, oldest_ms,
            facts["dead"], facts,
        )  # fmt: skip

    async def _routing_metrics(self, processes: Sequence[ProcessReport]) -> ModuleMetrics:
        lengths = await self._routing_lengths.lengths()
        instances, unowned = await self._routing.instances()
        facts = {
            **asdict(lengths),
            "instances": len(instances),
            "silent": sum(not each.live for each in instances),
            "unowned": unowned,
        }
        return ModuleMetrics(
            "routing", _count(processes, "relay", "inbox", "deliverer"),
            lengths.keys_with_mail + lengths.outbound + lengths.retrying + lengths.in_hand, None,
            lengths.dead_inbound + lengths.dead_outbound, facts,
        )  # fmt: skip

    async def _conversations_metrics(
        self, processes: Sequence[ProcessReport], senders: SendersView
    ) -> ModuleMetrics:
        found = [await self._conversations.in_flight(partition) for partition in self._partitions]
        replies, requests, new = (sum(each) for each in zip(*found, strict=True))
        waiting = sum(need.replies for need in senders.needs)
        facts = {"replies": replies, "requests": requests, "new": new, "without_sender": waiting}
        return ModuleMetrics(
            "conversations", _count(processes, "conversations"), replies, None, 0, facts
        )

    async def _pickup_metrics(
        self, processes: Sequence[ProcessReport], now_ms: int
    ) -> ModuleMetrics:
        found = await self._pickup.totals()
        ages = [
            await self._pickup_ages.queues_by_age(partition, 0, 1) for partition in self._partitions
        ]
        oldest = [queue.since_ms for queues in ages for queue in queues]
        facts = {
            "gateways": sum(gateway.live for gateway in found.gateways),
            "sessions": sum(gateway.sessions for gateway in found.gateways if gateway.live),
            "queues": found.queues,
            "moving": found.moving,
            "pushes": found.pushes,
        }
        return ModuleMetrics(
            "pickup", _count(processes, "gateway"), found.queues,
            max(0, now_ms - min(oldest)) if oldest else None, 0, facts,
        )  # fmt: skip


def _transactions_metrics(
    health: TransactionHealthReport, processes: Sequence[ProcessReport]
) -> ModuleMetrics:
    queued = sum(queue.length for queue in health.queues)
    facts = {
        "queued": queued,
        "running": health.running,
        "sleeping": health.sleeping,
        "webhooks": health.webhooks,
        "to_archive": health.to_archive,
        "nodes": len(health.nodes),
        "silent_nodes": sum(not node.alive for node in health.nodes),
    }
    waits = [queue.waiting_ms for queue in health.queues if queue.length]
    return ModuleMetrics(
        "transactions", _count(processes, "node", "webhooks", "archiver"),
        queued + health.running + health.sleeping, max(waits, default=None), 0, facts,
    )  # fmt: skip


def _moment(entry_id: str) -> int:
    return int(entry_id.partition("-")[0] or 0)


def _oldest(partitions: Sequence[PartitionStatus]) -> int | None:
    return max((each.oldest_ms for each in partitions if each.pending), default=None)


def _roles(processes: Sequence[ProcessReport]) -> set[str]:
    return {each.role for each in processes}


def _count(processes: Sequence[ProcessReport], *roles: str) -> int:
    return sum(each.role in roles for each in processes)
