"""What is hurt, when, and for how long: pure, and the same for the same seed.

The schedule is drawn whole before anything starts, so a seed replays it. What the processes do
between two faults is theirs: a replay hurts the same things at the same moments, and the load meets
it as it happens to.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Shape = Literal["single", "sentinel", "cluster"]
SHAPES: tuple[Shape, ...] = ("single", "sentinel", "cluster")

# How many of each role. The order is that of starting, and a fault's target is a place in it.
FLEET: Mapping[str, int] = MappingProxyType(
    {
        "api": 1,
        "relay": 1,
        "inbox": 2,
        "deliverer": 1,
        "dispatcher": 2,
        "worker": 2,
        "gateway": 2,
        "conversations": 2,
        "archiver": 1,
        "webhooks": 1,
        "node": 2,
    }
)
MEMBERS = sum(FLEET.values())
SERVERS = 3  # primaries of the cluster

# Kind -> weight, and the seconds it lasts. Leases are two to four seconds in a campaign, so a
# pause may end before them, with them or long after.
_ROLE_FAULTS = {
    "kill": (30, (0.0, 1.5)),
    "pause": (18, (0.5, 7.0)),
    "clock": (8, (0.5, 6.0)),
    "database away": (4, (1.0, 7.0)),
    "disk full": (4, (1.0, 6.0)),
}
# Through the proxy in front of one process, which only a single server has.
_LINE_FAULTS = {
    "cut": (10, (0.0, 0.0)),
    "away": (8, (0.5, 5.0)),
    "slow": (6, (0.5, 4.0)),
    "narrow": (4, (0.5, 3.0)),
    "silent": (6, (0.5, 5.0)),
    "torn": (6, (1.0, 3.0)),
}
_SERVER_FAULTS: Mapping[Shape, Mapping[str, tuple[int, tuple[float, float]]]] = {
    "single": {"redis killed": (5, (0.0, 1.5)), "redis paused": (4, (0.2, 3.0))},
    "sentinel": {"failover": (14, (0.0, 1.0))},
    "cluster": {"node lost": (14, (0.0, 1.0))},
}
CLOCK_JUMP_S = (-7_200.0, 7_200.0)
DELAY_S = (0.02, 0.4)
TORN_BYTES_MAX = 4_096


@dataclass(frozen=True)
class Fault:
    """`target` is a place in the fleet or among the servers; `amount` means what its kind says."""

    at_s: float
    kind: str
    target: int
    seconds: float
    amount: float

    def __str__(self) -> str:
        return f"{self.at_s:8.2f} s  {self.kind:<14} #{self.target} for {self.seconds:.2f} s"


def kinds_of(shape: Shape) -> dict[str, tuple[int, tuple[float, float]]]:
    """A sentinel's campaign has PostgreSQL, whose files are its own; the others have SQLite."""
    lines = _LINE_FAULTS if shape == "single" else {}
    found = {**_ROLE_FAULTS, **lines, **_SERVER_FAULTS[shape]}
    if shape == "sentinel":
        del found["disk full"]
    return found


def draw(seed: int, count: int, span_s: float, shape: Shape) -> list[Fault]:
    """`count` faults spread over `span_s`; each kind that the shape has comes once at least,
    if there are enough of them."""
    chance = random.Random(f"{seed}/{shape}")
    kinds = kinds_of(shape)
    drawn = list(kinds)[:count]
    weights = [weight for weight, _ in kinds.values()]
    drawn += chance.choices(list(kinds), weights, k=count - len(drawn))
    chance.shuffle(drawn)
    moments = sorted(chance.uniform(0, span_s) for _ in range(count))
    return [
        Fault(
            round(at_s, 3),
            kind,
            chance.randrange(SERVERS if kind == "node lost" else MEMBERS),
            round(chance.uniform(*kinds[kind][1]), 3),
            round(_amount(kind, chance), 3),
        )
        for at_s, kind in zip(moments, drawn, strict=True)
    ]


def _amount(kind: str, chance: random.Random) -> float:
    if kind == "clock":
        return chance.uniform(*CLOCK_JUMP_S)
    if kind == "slow":
        return chance.uniform(*DELAY_S)
    return chance.uniform(0, TORN_BYTES_MAX)
