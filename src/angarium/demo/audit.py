"""Audits the demo from journal events alone: lost, doubled and out-of-order messages.

A message is delivered when its recipient has removed each of its replies from pickup once. A
reply is out of order if a later reply came to the recipient's queue first, although the earlier one
was accepted before the later one's turn. A reply's turn begins when a process has taken it and the
reply before it has ended. A reply accepted after that can't go first.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from angarium.runtime.journal import Event, JournalEntry

EXAMPLES_MAX = 5  # ids named in a result
COMPARED_REPLIES = 200  # each reply is compared with this many before it


class Percentiles(msgspec.Struct, frozen=True):
    count: int
    p50: float
    p95: float
    p99: float
    max: float


class AuditResult(msgspec.Struct, frozen=True):
    """`lost`: published and not delivered. `source` is `journal` or `lake`."""

    accepted: int
    delivered: int
    lost: int
    doubled: int
    out_of_order: int
    replies: int
    source: str
    latency_ms: dict[str, Percentiles]
    examples: list[str] = []
    wrong_in_lake: int | None = None
    """Errors found by the lake's audit of all modules; None if it did not run."""

    @property
    def clean(self) -> bool:
        wrong = self.lost or self.doubled or self.out_of_order or self.wrong_in_lake
        return not wrong and self.accepted == self.delivered


@dataclass
class _Message:
    accepted_ms: int
    user: str = ""
    place: int = -1  # of its request in the conversation
    replies: list[str] = field(default_factory=list)


@dataclass
class _QueuedReply:
    reply: str
    queue: str
    turn: int  # number of the event that began the reply's turn
    removed: int = 0
    removed_ms: int = 0


class JournalAudit:
    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._messages: dict[str, _Message] = {}
        self._places: Counter[str] = Counter()
        self._request_of: dict[str, str] = {}
        self._queued: dict[str, _QueuedReply] = {}
        self._arrivals: defaultdict[str, list[str]] = defaultdict(list)
        self._number = 0
        self._accepted_at: dict[str, int] = {}
        self._taken_at: dict[str, int] = {}
        self._ended_at: dict[str, int] = {}
        self._doubled: list[str] = []  # subjects of events that may happen only once

    def read(self, entry: JournalEntry) -> None:
        for event in entry.events:
            self._number += 1
            self.counts[entry.module, event.event] += 1
            match entry.module, event.event:
                case "dispatch", "accepted":
                    self._accepted(event, entry.at_ms)
                case "conversations", "requested":
                    self._requested(event)
                case "conversations", "accepted":
                    self._replied(event)
                case "conversations", "taken":
                    self._taken_at[event.subject] = self._number
                case "conversations", "delivered" | "expired" | "cancelled" | "dead":
                    self._ended_at[event.subject] = self._number
                case "pickup", "accepted":
                    self._added(event)
                case "pickup", "delivered":
                    self._removed(event, entry.at_ms)

    def _accepted(self, event: Event, at_ms: int) -> None:
        if event.subject in self._messages:
            self._doubled.append(event.subject)
        self._messages.setdefault(event.subject, _Message(at_ms))

    def _requested(self, event: Event) -> None:
        message = self._messages.get(event.subject)
        if message is None:
            return
        if message.place >= 0:
            self._doubled.append(event.subject)
        message.user = event.key or ""
        message.place = self._places[message.user]
        self._places[message.user] += 1

    def _replied(self, event: Event) -> None:
        request = event.detail or ""
        self._accepted_at.setdefault(event.subject, self._number)
        self._request_of[event.subject] = request
        if request in self._messages:
            self._messages[request].replies.append(event.subject)

    def _added(self, event: Event) -> None:
        if event.subject in self._queued:
            self._doubled.append(event.subject)
        reply, queue = event.detail or "", event.key or ""
        before = self._arrivals[queue][-1:]
        ended = [self._ended_at.get(self._queued[each].reply, 0) for each in before]
        turn = max(self._taken_at.get(reply, 0), *ended, 0)
        self._queued[event.subject] = _QueuedReply(reply, queue, turn)
        self._arrivals[queue].append(event.subject)

    def _removed(self, event: Event, at_ms: int) -> None:
        message = self._queued.get(event.subject)
        if message is None:
            return
        message.removed += 1
        message.removed_ms = at_ms
        if message.removed > 1:
            self._doubled.append(event.subject)

    # The result

    @property
    def accepted(self) -> int:
        return len(self._messages)

    @property
    def removed(self) -> int:
        return self.counts["pickup", "delivered"]

    def result(
        self,
        published: int,
        replies_each: int,
        offline: frozenset[str] = frozenset(),
        unordered: int = 0,
    ) -> AuditResult:
        """`unordered` counts messages that recipients received out of order."""
        removed = {each.reply: each for each in self._queued.values() if each.removed}
        latencies: dict[str, list[int]] = {"live": [], "offline": []}
        missing: list[str] = []
        for message_id, message in self._messages.items():
            ends = [removed[reply].removed_ms for reply in message.replies if reply in removed]
            if len(ends) != replies_each or len(message.replies) != replies_each:
                missing.append(message_id)
                continue
            group = "offline" if message.user in offline else "live"
            latencies[group].append(max(ends) - message.accepted_ms)
        delivered = len(self._messages) - len(missing)
        started = self.counts["transactions", "started"]
        twice = [*self._doubled, *("a transaction",) * max(0, started - len(self._messages))]
        unsorted = self._out_of_order()
        return AuditResult(
            accepted=len(self._messages),
            delivered=delivered,
            lost=max(0, published - delivered),
            doubled=len(twice),
            out_of_order=len(unsorted) + unordered,
            replies=self.counts["conversations", "accepted"],
            source="journal",
            latency_ms={name: percentiles(found) for name, found in latencies.items() if found},
            examples=[*missing, *twice, *unsorted][:EXAMPLES_MAX],
        )

    def _out_of_order(self) -> list[str]:
        """Replies that a later reply overtook."""
        found: list[str] = []
        for message_ids in self._arrivals.values():
            for number, later in enumerate(message_ids):
                reply = self._queued[later].reply
                place, accepted = self._place(reply), self._accepted_at.get(reply, 0)
                if any(
                    self._place(self._queued[each].reply) > place
                    and self._queued[each].turn > accepted
                    for each in message_ids[max(0, number - COMPARED_REPLIES) : number]
                ):
                    found.append(reply)
        return found

    def seen_out_of_order(self, queue: str, seen: Iterable[str]) -> int:
        """How often a recipient got a message after one that came to its queue later."""
        places = {each: place for place, each in enumerate(self._arrivals[queue])}
        found = [places[each] for each in seen if each in places]
        return sum(after < before for before, after in itertools.pairwise(found))

    def _place(self, reply: str) -> tuple[int, int]:
        message = self._messages.get(self._request_of.get(reply, ""))
        if message is None:
            return (-1, -1)
        return message.place, message.replies.index(reply)


def percentiles(values: Iterable[float]) -> Percentiles:
    ordered = sorted(values)

    def at(part: float) -> float:
        return round(ordered[max(0, math.ceil(part * len(ordered)) - 1)], 1)

    return Percentiles(len(ordered), at(0.5), at(0.95), at(0.99), round(ordered[-1], 1))


def event_counts(counts: Mapping[tuple[str, str], int]) -> Sequence[tuple[str, int]]:
    """Labels and counts, in the order of a message's path."""
    labels = {
        "accepted by the leader": ("dispatch", "accepted"),
        "redelivered": ("dispatch", "redelivered"),
        "transactions started": ("transactions", "started"),
        "sleeping until the expert answers": ("transactions", "slept"),
        "transactions completed": ("transactions", "completed"),
        "replies accepted": ("conversations", "accepted"),
        "replies sent, in order": ("conversations", "delivered"),
        "waiting at pickup": ("pickup", "accepted"),
        "push notifications": ("pickup", "pushed"),
        "picked up and removed": ("pickup", "delivered"),
    }
    return [(text, counts.get(event, 0)) for text, event in labels.items()]
