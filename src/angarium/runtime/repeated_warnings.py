"""Warnings that repeat: the first few of a kind are logged, the others are counted.

A function with a bug fails for every message, and anybody can connect to a port again and again.
Neither may fill a disk. The `count` fields of the lines add up to the number of occurrences:
`flush` logs the occurrences since the last line of a kind. A kind that does not occur for an
interval starts again with its first lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from angarium.runtime.clock import Clock

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

# Lines of one kind before the others are only counted: enough to compare a few cases.
LINES_FIRST = 3
# One line per interval and kind: 360 lines an hour.
INTERVAL_S = 10.0
# Kinds contain codes and texts from outside; beyond this many kinds, new ones share one line.
KINDS_MAX = 50
OTHERS = "others"


@dataclass
class _Kind:
    until_s: float
    event: str = ""
    lines: int = 0
    unlogged: int = 0
    values: dict[str, Any] = field(default_factory=dict)


class RepeatedWarnings:
    def __init__(self, log: BoundLogger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}

    def warn(self, event: str, kind: str, *, count: int = 1, **values: Any) -> None:
        key = f"{event} {kind}"
        if key not in self._kinds and len(self._kinds) >= KINDS_MAX:
            key = OTHERS
        found = self._kinds.get(key)
        if found is None:
            found = self._kinds[key] = _Kind(self._clock.monotonic() + INTERVAL_S)
        found.event, found.values = event, values
        found.unlogged += count
        if found.lines < LINES_FIRST:
            self._write(found)

    def flush(self, *, at_end: bool = False) -> None:
        """Call this every few seconds, and with `at_end` before the process ends."""
        now_s = self._clock.monotonic()
        for key, found in list(self._kinds.items()):
            if now_s < found.until_s and not at_end:
                continue
            if found.unlogged == 0:
                del self._kinds[key]
                continue
            self._write(found)
            found.until_s = now_s + INTERVAL_S

    def _write(self, found: _Kind) -> None:
        self._log.warning(found.event, count=found.unlogged, **found.values)
        found.lines += 1
        found.unlogged = 0
