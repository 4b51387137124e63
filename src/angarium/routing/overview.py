"""Routing in the overview."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict

from angarium.routing.service import RoutingService
from angarium.runtime.overview import ModuleSample, Notice
from angarium.runtime.runtime import Runtime
from angarium.runtime.text import count_of


class RoutingSampler:
    def __init__(self, runtime: Runtime) -> None:
        self._routing = runtime.store(RoutingService)

    async def sample(self, roles: Set[str], now_ms: int) -> ModuleSample:
        lengths = await self._routing.lengths()
        instances, unowned = await self._routing.instances()
        facts = {
            **asdict(lengths),
            "instances": len(instances),
            "silent": sum(not each.live and not each.retired for each in instances),
            "retired": sum(each.retired for each in instances),
            "unowned": unowned,
        }
        waiting = lengths.keys_with_mail + lengths.outbound + lengths.retrying + lengths.in_hand
        dead = lengths.dead_inbound + lengths.dead_outbound
        return ModuleSample(waiting, facts, None, dead, [*routing_notices(facts)])


def routing_notices(facts: Mapping[str, int]) -> Iterator[Notice]:
    if facts["unowned"]:
        text = f"{count_of(facts['unowned'], 'recipient key')} with mail and no owner"
        yield Notice("routing", "trouble", text, "start an instance: angarium serve inbox")
    if facts["silent"]:
        text = f"{count_of(facts['silent'], 'instance')} silent"
        yield Notice("routing", "warning", text, "its keys move to other instances automatically")
    if facts["dead_outbound"]:
        text = f"{count_of(facts['dead_outbound'], 'delivery')} given up"
        yield Notice("routing", "warning", text, "look at the reasons, then retry")
    if facts["dead_inbound"]:
        text = f"{count_of(facts['dead_inbound'], 'inbound message')} that no instance could handle"
        yield Notice("routing", "warning", text, "the reason is in the log of the role inbox")
