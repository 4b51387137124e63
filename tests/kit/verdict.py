"""Checks the records of a history and returns a verdict. No I/O.

Every accepted operation must arrive exactly once, and first arrivals of one key must come in
the order in which that key's operations were sent. One pass over lists: a million
operations take seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

NAMES_MAX = 10  # ids named per kind of failure: enough to search for, short enough to read


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One thing that happened; `id` is the kind of a fault, or the operation's id."""

    kind: Literal["attempted", "sent", "received", "fault"]
    at_ns: int
    id: str
    key: str | None = None
    position: int | None = None


@dataclass(frozen=True)
class Finding:
    """How many operations went wrong in one way, and the first of them by name."""

    count: int = 0
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = ", …" if self.count > len(self.names) else ""
        return f"{self.count:>12,}   {', '.join(self.names)}{more}".rstrip()


@dataclass(frozen=True)
class Verdict:
    """`lost`, `doubled` and the others count operations, not arrivals."""

    operations: int = 0
    received: int = 0
    faults: Mapping[str, int] = field(default_factory=dict)
    lost: Finding = Finding()
    doubled: Finding = Finding()
    out_of_order: Finding = Finding()
    unexpected: Finding = Finding()  # arrived, but nobody sent it
    wrong_key: Finding = Finding()  # arrived under another key than it was sent with
    unknown: int = 0  # attempted, never known to be accepted: may be missing, may have arrived
    torn: int = 0  # records of a killed writer that can't be read
    longest_stall_ms: float = 0.0
    duration_s: float = 0.0
    stall_ms_max: float | None = None

    @property
    def stalled(self) -> bool:
        return self.stall_ms_max is not None and self.longest_stall_ms > self.stall_ms_max

    @property
    def ok(self) -> bool:
        return self.operations > 0 and not self.stalled and not self._broken

    @property
    def exit_status(self) -> int:
        return 0 if self.ok else 1

    @property
    def _broken(self) -> bool:
        wrong = (self.lost, self.doubled, self.out_of_order, self.unexpected, self.wrong_key)
        return any(finding.count for finding in wrong)

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.faults.items()))
        limit = f"   of {self.stall_ms_max:,.0f} allowed" if self.stall_ms_max is not None else ""
        rows = [
            f"operations    {self.operations:>12,}   in {self.duration_s:,.1f} s",
            f"received      {self.received:>12,}",
            f"faults        {sum(self.faults.values()):>12,}   {kinds}".rstrip(),
            f"lost          {self.lost}",
            f"doubled       {self.doubled}",
            f"out of order  {self.out_of_order}",
            f"longest stall {self.longest_stall_ms:>9,.0f} ms{limit}",
        ]
        rare = [("unexpected    ", self.unexpected), ("wrong key     ", self.wrong_key)]
        rows += [f"{name}{finding}" for name, finding in rare if finding.count]
        rows += [f"unknown       {self.unknown:>12,}"] if self.unknown else []
        rows += [f"torn records  {self.torn:>12,}"] if self.torn else []
        return "\n".join([*rows, f"verdict       {self._word:>12}"])

    @property
    def _word(self) -> str:
        if self.operations == 0:
            return "EMPTY"
        if self._broken:
            return "BROKEN"
        return "STALLED" if self.stalled else "ok"


def check_records(
    records: Sequence[Record], *, torn: int = 0, stall_ms_max: float | None = None
) -> Verdict:
    """The verdict on records sorted by time."""
    checker = _Checker()
    for record in records:
        checker.enter(record)
    last_ns = records[-1].at_ns if records else 0
    flags = checker.flags
    return Verdict(
        operations=sum(1 for flag in flags if flag & ACCEPTED),
        received=checker.received,
        faults=dict(checker.faults),
        lost=checker.finding(lambda flag: flag & (ACCEPTED | ARRIVED) == ACCEPTED),
        doubled=checker.finding(lambda flag: flag & DOUBLED),
        out_of_order=checker.named(checker.out_of_order()),
        unexpected=checker.finding(lambda flag: not flag & MENTIONED),
        wrong_key=checker.named(checker.with_wrong_key()),
        unknown=sum(1 for flag in flags if flag & MENTIONED and not flag & ACCEPTED),
        torn=torn,
        longest_stall_ms=checker.longest_stall_ns(last_ns) / 1e6,
        duration_s=(last_ns - records[0].at_ns) / 1e9 if records else 0.0,
        stall_ms_max=stall_ms_max,
    )


MENTIONED, ACCEPTED, ARRIVED, DOUBLED = 1, 2, 4, 8


class _Checker:
    """State of one pass: what was sent, what arrived, and the longest time without an arrival.

    An operation is a number, given at its first record, so that a record costs one look-up
    of a string and the rest is lists.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.flags = bytearray()
        self.turns: list[int] = []  # by number: the place in the order of sending
        self.keys: list[str | None] = []  # by number: the key it was sent with
        self.arrivals: list[tuple[int, Record]] = []  # first ones only
        self.faults: Counter[str] = Counter()
        self.received = 0
        self._turn = 0
        self._outstanding = 0
        self._waiting_since_ns = 0
        self._stall_ns = 0

    def enter(self, record: Record) -> None:
        kind = record.kind
        if kind == "fault":
            self.faults[record.id] += 1
            return
        number = self.numbers.setdefault(record.id, len(self.flags))
        if number == len(self.flags):
            self.flags.append(0)
            self.turns.append(-1)
            self.keys.append(None)
        if kind == "received":
            self._arrive(number, record)
            return
        if not self.flags[number] & MENTIONED:
            self.flags[number] |= MENTIONED
            self.turns[number] = self._turn
            self.keys[number] = record.key
            self._turn += 1
        if kind == "sent" and not self.flags[number] & ACCEPTED:
            self._accept(number, record.at_ns)

    def _accept(self, number: int, at_ns: int) -> None:
        self.flags[number] |= ACCEPTED
        # It may have arrived before its sender was told that it was accepted.
        if not self.flags[number] & ARRIVED:
            if self._outstanding == 0:
                self._waiting_since_ns = at_ns
            self._outstanding += 1

    def _arrive(self, number: int, record: Record) -> None:
        self.received += 1
        at_ns = record.at_ns
        if self._outstanding and at_ns - self._waiting_since_ns > self._stall_ns:
            self._stall_ns = at_ns - self._waiting_since_ns
        self._waiting_since_ns = at_ns
        flag = self.flags[number]
        if flag & ARRIVED:
            self.flags[number] = flag | DOUBLED
            return
        self.flags[number] = flag | ARRIVED
        self.arrivals.append((number, record))
        if flag & ACCEPTED:
            self._outstanding -= 1

    def longest_stall_ns(self, end_ns: int) -> int:
        """Operations that are outstanding at the end have waited until the end."""

        tail_ns = end_ns - self._waiting_since_ns if self._outstanding else 0
        return max(self._stall_ns, tail_ns)

    def finding(self, wrong: Callable[[int], object]) -> Finding:
        return self.named([number for number, flag in enumerate(self.flags) if wrong(flag)])

    def named(self, numbers: Sequence[int]) -> Finding:
        if not numbers:
            return Finding()
        names = list(self.numbers)  # in the order of their numbers
        return Finding(len(numbers), tuple(names[number] for number in numbers[:NAMES_MAX]))

    def with_wrong_key(self) -> list[int]:
        """Operations that arrived under another key than they were sent with."""
        return [
            number
            for number, record in self.arrivals
            if record.key is not None
            and self.turns[number] >= 0
            and record.key != self.keys[number]
        ]

    def out_of_order(self) -> list[int]:
        """Operations that arrived after a later operation of the same key."""
        by_key: dict[str, list[tuple[int, Record]]] = {}
        for arrival in self.arrivals:
            key = self.keys[arrival[0]]
            if key is not None:
                by_key.setdefault(key, []).append(arrival)
        late: list[int] = []
        for arrivals in by_key.values():
            if all(record.position is not None for _, record in arrivals):
                arrivals.sort(key=lambda arrival: arrival[1].position or 0)
            highest = -1
            for number, _ in arrivals:
                turn = self.turns[number]
                if turn < highest:
                    late.append(number)
                else:
                    highest = turn
        return late
