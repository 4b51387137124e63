"""Faults, done: one of the schedule at a time for each thing that can be hurt."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

from tests.faults.campaign.fleet import Fleet, Member
from tests.faults.campaign.schedule import Fault
from tests.faults.campaign.servers import Servers
from tests.kit.proxy import FaultProxy, ThreadedFaultProxy

NARROW_BYTES_PER_S = 20_000.0
# Whose files grow: the archive of transactions, and the mail that waits longer.
WRITERS = ("archiver", "gateway")


class Injector:
    """`done` counts by kind what was really injected."""

    def __init__(self, fleet: Fleet, servers: Servers) -> None:
        self._fleet = fleet
        self._servers = servers
        # Two at once would undo each other: the later one finds the limit that the first has set,
        # takes it for the process' own, and leaves the disk «full» for good.
        self._disk_lock = asyncio.Lock()
        self.done: Counter[str] = Counter()
        self.log: list[str] = []

    async def run(self, schedule: list[Fault]) -> None:
        began_s = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for fault in schedule:
                now_s = asyncio.get_running_loop().time()
                await asyncio.sleep(max(0.0, began_s + fault.at_s - now_s))
                group.create_task(self._inject(fault, began_s))

    async def _inject(self, fault: Fault, began_s: float) -> None:
        member = self._fleet.members[fault.target % len(self._fleet.members)]
        if fault.kind in ("redis killed", "redis paused", "failover", "node lost"):
            async with self._servers.lock:
                self._note(fault, "redis", began_s)
                await self._hurt_server(fault)
        elif fault.kind == "database away":
            async with self._servers.database_lock:
                self._note(fault, "database", began_s)
                async with self._servers.database_away():
                    await asyncio.sleep(fault.seconds)
        elif fault.kind == "disk full":
            async with self._disk_lock:
                await self._fill_disk(fault, began_s)
        else:
            async with member.lock:
                if not member.alive:
                    await member.start()
                self._note(fault, member.name, began_s)
                await self._hurt_member(fault, member)

    def _note(self, fault: Fault, name: str, began_s: float) -> None:
        self.done[fault.kind] += 1
        at_s = asyncio.get_running_loop().time() - began_s
        self.log.append(f"{at_s:8.2f} s  {fault.kind:<14} {name} for {fault.seconds:.2f} s")

    async def _hurt_server(self, fault: Fault) -> None:
        match fault.kind:
            case "redis killed":
                await self._servers.kill(fault.seconds)
            case "redis paused":
                await self._servers.pause(fault.seconds)
            case "failover":
                await self._servers.fail_over(fault.seconds)
            case _:
                await self._servers.lose_node(fault.target, fault.seconds)

    async def _hurt_member(self, fault: Fault, member: Member) -> None:
        match fault.kind:
            case "kill":
                member.kill()
                await asyncio.sleep(fault.seconds)
                await member.start()
            case "pause":
                member.pause()
                try:
                    await asyncio.sleep(fault.seconds)
                finally:
                    member.resume()
            case "clock":
                member.set_clock(fault.amount)
                await asyncio.sleep(fault.seconds)
                with contextlib.suppress(ProcessLookupError):
                    member.set_clock(0.0)
            case _:
                assert member.proxy is not None
                await self._hurt_line(fault, member.proxy)

    async def _hurt_line(self, fault: Fault, proxy: ThreadedFaultProxy) -> None:
        await asyncio.to_thread(proxy.do, lambda each: _spoil(each, fault))
        await asyncio.sleep(fault.seconds)
        await asyncio.to_thread(proxy.do, lambda each: each.heal())

    async def _fill_disk(self, fault: Fault, began_s: float) -> None:
        self._note(fault, "archiver, gateways", began_s)
        undone = []
        for role in WRITERS:
            for member in self._fleet.of(role):
                if member.alive:
                    with contextlib.suppress(ProcessLookupError):
                        undone.append(member.fill_disk())
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            for undo in undone:
                undo()


def _spoil(proxy: FaultProxy, fault: Fault) -> None:
    match fault.kind:
        case "cut":
            proxy.cut()
        case "away":
            proxy.refuse()
            proxy.cut()
        case "slow":
            proxy.delay(fault.amount)
        case "narrow":
            proxy.throttle(NARROW_BYTES_PER_S)
        case "silent":
            proxy.half_open()
        case "torn":
            proxy.cut_after(int(fault.amount), "server" if fault.target % 2 else "client")
