"""What the journal says of each account: pure, entries in and a balance out.

Which event begins and ends which account is the lake's catalogue. Read from the beginning when all
is over: in a failover the journal may lose what nobody was told of, and what then happened is what
counts. Numbers tell whether an event is missing between two others, or was given out twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from angarium.lake.catalogue import CATALOGUE, FAILED_STATUSES
from angarium.runtime.journal import Event, JournalEntry
from angarium.runtime.module import Part


@dataclass
class Account:
    """One kind of life. Subjects by what was counted of them."""

    begun: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    retries: int = 0
    stall_ms: int = 0
    _open: set[str] = field(default_factory=set)
    _since_ms: int = 0

    def begin(self, subject: str, at_ms: int) -> None:
        self.begun[subject] += 1
        if not self._open:
            self._since_ms = at_ms
        self._open.add(subject)

    def end(self, subject: str, at_ms: int, outcome: str) -> None:
        self.ended[subject] += 1
        self.outcomes[outcome] += 1
        if outcome != "delivered":
            self.bad.append(subject)
        if self._open:
            self.stall_ms = max(self.stall_ms, at_ms - self._since_ms)
        self._since_ms = at_ms
        self._open.discard(subject)

    @property
    def unfinished(self) -> list[str]:
        return [subject for subject in self.begun if not self.ended[subject]]

    @property
    def doubled(self) -> list[str]:
        again = [subject for subject, count in self.begun.items() if count > 1]
        return again + [s for s, count in self.ended.items() if count > max(1, self.begun[s])]

    @property
    def unannounced(self) -> list[str]:
        return [subject for subject in self.ended if subject not in self.begun]


class Balance:
    def __init__(self) -> None:
        self.accounts: defaultdict[tuple[str, str], Account] = defaultdict(Account)
        self.events = 0
        self.missing_numbers = 0
        self.rewound_numbers = 0
        self.request_places: defaultdict[str, list[str]] = defaultdict(list)
        self.request_of: dict[str, str] = {}
        self.reply_key: dict[str, str] = {}
        self.letters: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        self._last: dict[int, int] = {}

    def read(self, partition: int, entry: JournalEntry) -> None:
        last = self._last.get(partition, 0)
        self.missing_numbers += max(0, entry.first_sequence - last - 1)
        self.rewound_numbers += max(0, last - entry.first_sequence + 1)
        self._last[partition] = entry.first_sequence + len(entry.events) - 1
        for event in entry.events:
            self.events += 1
            self._enter(entry.module, event, entry.at_ms)

    def _enter(self, module: str, event: Event, at_ms: int) -> None:
        meaning = CATALOGUE.get((module, event.event))
        if meaning is None or not meaning.account:
            return
        account = self.accounts[module, meaning.account]
        account.retries += meaning.retry
        if meaning.part in (Part.ACCEPT, Part.REOPEN):
            account.begin(event.subject, at_ms)
            self._note_place(module, meaning.account, event)
        elif meaning.part is Part.END:
            failed = event.status in FAILED_STATUSES
            account.end(event.subject, at_ms, "failed" if failed else meaning.outcome)

    def _note_place(self, module: str, account: str, event: Event) -> None:
        if (module, account) == ("conversations", "request"):
            self.request_places[event.key or ""].append(event.subject)
        elif (module, account) == ("conversations", "reply"):
            self.request_of[event.subject] = event.detail or ""
            self.reply_key[event.subject] = event.key or ""
        elif module == "pickup":
            self.letters[event.key or ""].append((event.subject, event.detail or ""))

    @property
    def open_lives(self) -> int:
        return sum(len(each.unfinished) for each in self.accounts.values())

    def replies_out_of_order(self) -> list[str]:
        """Replies that came to pickup behind one of a later request of their conversation."""
        places = {
            request: place
            for requests in self.request_places.values()
            for place, request in enumerate(requests)
        }
        late: list[str] = []
        for letters in self.letters.values():
            found = [
                (reply, places.get(self.request_of.get(reply, ""), -1)) for _, reply in letters
            ]
            late += descending(found)
        return late

    def replies_twice_in_pickup(self) -> list[str]:
        counts = Counter(reply for letters in self.letters.values() for _, reply in letters)
        return [reply for reply, count in counts.items() if count > 1]


def descending(items: Iterable[tuple[str, int]]) -> list[str]:
    """The names that come behind a higher number."""
    highest, late = -1, []
    for name, number in items:
        if number < highest:
            late.append(name)
        highest = max(highest, number)
    return late
