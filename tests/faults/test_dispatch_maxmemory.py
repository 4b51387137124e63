"""Redis at its maxmemory under load, and space again: accepted work ends once, memory stays flat.

Redis then takes nothing new, and finishes what it has. A channel can't be asked to wait: what the
leader's memory does not hold meanwhile is lost, and counted. Durable publishing is refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from angarium.runtime.errors import Overloaded
from angarium.runtime.process_report import read_processes
from tests.dispatch.processes import DispatchProcesses, dispatch_processes
from tests.faults.profile import rounds
from tests.kit.eventually import eventually
from tests.kit.server import ServerProcess

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]
TEXT = "x" * 1_000
MIB = 1024 * 1024


def payload(name: str) -> bytes:
    return b'{"n":"%s","text":"%s"}' % (name.encode(), TEXT.encode())


class Senders:
    """Publish on the channel and into the durable intake until told to stop."""

    def __init__(self, ours: DispatchProcesses) -> None:
        self._ours = ours
        self.published = 0
        self.enqueued: list[str] = []
        self.refused = 0
        self.over = asyncio.Event()

    async def publish(self) -> None:
        while not self.over.is_set():
            names = [f"p{self.published + n}" for n in range(100)]
            await self._ours.publish([payload(each) for each in names])
            self.published += 100
            await asyncio.sleep(0.02)

    async def enqueue(self) -> None:
        number = 0
        while not self.over.is_set():
            name = f"d{number}"
            try:
                await self._ours.store.enqueue(payload(name), name)
            except Overloaded:
                self.refused += 1
                await asyncio.sleep(0.05)
                continue  # the same message again, as its sender would do
            self.enqueued.append(name)
            number += 1


async def dispatcher_figures(ours: DispatchProcesses) -> dict[str, float]:
    found = [each for each in await read_processes(ours.runtime) if each.role == "dispatcher"]
    assert found
    return {name: float(value) for name, value in found[0].figures.items()}


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / MIB


async def test_maxmemory_reached_and_lifted_under_load_loses_nothing_that_was_accepted() -> None:
    limits = {
        "ANGARIUM_LIMITS__ACCEPT_MESSAGES_MAX": "1000",
        "ANGARIUM_LIMITS__RING_MESSAGES_MAX": "3000",
    }
    with ServerProcess(config={"maxmemory-policy": "noeviction"}) as server:
        async with dispatch_processes(server.url) as ours:
            dispatcher = await ours.add_dispatcher(**limits)
            await ours.add_worker()
            await ours.wait_for_leaders()
            senders = Senders(ours)
            async with asyncio.TaskGroup() as group:
                group.create_task(senders.publish())
                group.create_task(senders.enqueue())
                for _ in range(rounds(2, 6)):
                    await refuse_for_a_while(ours, server, senders, dispatcher.pid)
                senders.over.set()
            await settled(ours, senders)
            figures = await dispatcher_figures(ours)
            found = (await ours.results()).counts
            doubled = sum(each - 1 for each in found.values())
            published = Counter(each for each in found if each.startswith("p"))
            lost_durable = set(senders.enqueued) - set(found)
            print(
                f"{senders.published} published: {len(published)} finished, {figures['lost']:.0f} "
                f"counted as lost; {len(senders.enqueued)} enqueued ({senders.refused} refusals): "
                f"{len(lost_durable)} lost; {doubled} doubled"
            )
            assert doubled == 0
            assert lost_durable == set()
            assert senders.refused > 0
            assert figures["lost"] > 0
            assert len(published) + figures["lost"] == senders.published
            assert figures["takeovers"] == 1, "the leader led all the time"
            assert sum([(await ours.store.status(0)).dead]) == 0


async def refuse_for_a_while(
    ours: DispatchProcesses, server: ServerProcess, senders: Senders, pid: int
) -> None:
    """Full until the ring has dropped messages; then there is space until results arrive."""
    lost = (await dispatcher_figures(ours)).get("ring_dropped", 0)
    before_mib, refused = resident_mib(pid), senders.refused
    server.ask("CONFIG", "SET", "maxmemory", str(server.client().info("memory")["used_memory"]))

    async def overflows() -> bool:
        dropped = (await dispatcher_figures(ours))["ring_dropped"]
        return dropped > lost + 5_000 and senders.refused > refused

    await eventually(overflows, deadline_s=60)
    print(f"dispatcher: {before_mib:.0f} MiB before, {resident_mib(pid):.0f} MiB while refused")
    assert resident_mib(pid) < before_mib + 60
    server.ask("CONFIG", "SET", "maxmemory", "0")
    processed = (await ours.store.status(0)).processed

    async def more() -> bool:
        return (await ours.store.status(0)).processed > processed + 1_000

    await eventually(more, deadline_s=60)


async def settled(ours: DispatchProcesses, senders: Senders) -> None:
    """Everything that was published is accepted or counted as lost, and nothing is unfinished."""

    async def done() -> bool:
        figures, status = await dispatcher_figures(ours), await ours.store.status(0)
        known = figures["received"] >= senders.published and figures["queued"] == 0
        finished = len((await ours.results()).counts)
        wanted = senders.published + len(senders.enqueued) - figures["lost"]
        return known and status.pending + status.inbox == 0 and finished >= wanted

    await eventually(done, deadline_s=60)
