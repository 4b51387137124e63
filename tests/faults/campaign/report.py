"""The verdict of a campaign: pure, one row for each module and each way out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NAMED_MAX = 5


@dataclass(frozen=True)
class Row:
    """`again` is what was done twice and may be: a repeated step, a message given out anew."""

    module: str
    operations: int
    lost: Sequence[str] = ()
    doubled: Sequence[str] = ()
    out_of_order: Sequence[str] = ()
    again: int = 0
    stall_ms: int = 0

    @property
    def ok(self) -> bool:
        return self.operations > 0 and not (self.lost or self.doubled or self.out_of_order)

    def __str__(self) -> str:
        counts = [len(self.lost), len(self.doubled), len(self.out_of_order)]
        cells = "".join(f"{count:>9,}" for count in counts)
        word = "ok" if self.ok else ("EMPTY" if self.operations == 0 else "BROKEN")
        return (
            f"{self.module:<20}{self.operations:>11,}{cells}{self.again:>9,}"
            f"{self.stall_ms / 1000:>9.1f} s  {word}"
        )


@dataclass(frozen=True)
class Report:
    seed: int
    shape: str
    seconds: float
    drained_s: float
    faults: Mapping[str, int]
    rows: Sequence[Row]
    events: int
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()
    log: Sequence[str] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        return not self.problems and all(row.ok for row in self.rows)

    @property
    def injected(self) -> int:
        return sum(self.faults.values())

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        head = f"{'module':<20}{'operations':>11}{'lost':>9}{'doubled':>9}{'order':>9}{'again':>9}"
        lines = [
            f"campaign {self.shape}, seed {self.seed}: {self.injected} faults in "
            f"{self.seconds:.0f} s, all at rest {self.drained_s:.0f} s later, "
            f"{self.events:,} events in the journal",
            f"faults: {kinds}",
            f"{head}{'stall':>11}",
            *map(str, self.rows),
        ]
        for row in self.rows:
            for kind in ("lost", "doubled", "out_of_order"):
                names = getattr(row, kind)
                if names:
                    lines.append(f"  {row.module}, {kind}: {', '.join(names[:NAMED_MAX])}")
        lines += [f"problem: {each}" for each in self.problems]
        lines += [f"note: {each}" for each in self.notes]
        if not self.ok:
            lines.append(f"replay with CAMPAIGN_SEED={self.seed}, shape {self.shape}")
        return "\n".join(lines)
