"""The benchmarks by name, in the order of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """`asked`: runs only when it is named, for it takes long or chooses between libraries. `limits`
    are variables that keep it within its share of half an hour, unless the caller sets them."""

    name: str
    title: str
    asked: bool = False
    limits: tuple[tuple[str, str], ...] = ()


PARTS: Sequence[Part] = (
    Part("batching", "Gathering concurrent calls"),
    Part("reach", "What a large Redis costs by itself"),
    Part("dispatch", "Dispatch: from the publisher into the stream"),
    Part("routing", "Routing: from a POST to the handler"),
    Part("conversations", "Conversations: replies in order"),
    Part("conversations_size", "Conversations: how many are open"),
    Part("pickup", "Pickup: one gateway"),
    Part("pickup_sessions", "Pickup: how many sessions are live"),
    Part("transactions", "Transactions: from the start to the end"),
    Part("memory", "Memory of a queued message"),
    Part("lake", "Lake: from the journal into Delta", limits=(("LAKE_SECONDS", "240"),)),
    Part("database", "SQLite: ordered ids, and answers from the disk"),
    Part("versions", "This version beside 0.1.0", asked=True),
    Part("dispatch_locks", "How long a leader's lock should live", asked=True),
    Part("pickup_listeners", "Which WebSocket listener", asked=True),
)
NAMES = tuple(part.name for part in PARTS)
BY_NAME: Mapping[str, Part] = {part.name: part for part in PARTS}
