"""Structured logs on stderr, through the standard library's loggers.

A terminal gets aligned lines, everything else gets one JSON object per line. Records of other
libraries (uvicorn, asyncio) get the same format. `logger` works without `configure`, so a program
that uses Angarium as a library keeps its own logging. structlog is imported on first use, because
its import takes longer than the whole of `angarium --help`.

`RepeatedWarnings` logs the first few warnings of a kind and counts the others. A function with a
bug fails for every message, and anybody can connect to a port again and again. Neither may fill a
disk. The `count` fields of the lines add up to the number of occurrences: `flush` logs the
occurrences since the last line of a kind. A kind that does not occur for an interval starts again
with its first lines.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO, cast

from angarium.runtime.clock import Clock
from angarium.runtime.trace import CURRENT_WORK

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger
    from structlog.typing import EventDict, Processor
if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger


def logger(name: str, **values: object) -> BoundLogger:
    """A logger whose every event carries `values`."""
    import structlog

    wrapped = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return cast("BoundLogger", wrapped.bind(**values))


def configure(*, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send every record of this process to `stream` (stderr), replacing earlier handlers."""
    import structlog

    target = sys.stderr if stream is None else stream
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder(), _without_colour],
        processors=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.contextvars.merge_contextvars,
            _with_trace,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *_renderers(target.isatty()),
        ],
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=level, force=True)
    # Alembic logs each of its plugins in every process that opens the database.
    logging.getLogger("alembic.runtime.plugins").setLevel(max(level, logging.WARNING))


def _renderers(for_people: bool) -> list[Processor]:
    import structlog

    if for_people:
        return [structlog.dev.ConsoleRenderer(colors=True)]
    return [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(default=repr, ensure_ascii=False),
    ]


def _without_colour(_logger: Any, _method: str, event: EventDict) -> EventDict:
    # uvicorn sends each message a second time, with escape sequences, for its own formatter.
    event.pop("color_message", None)
    return event


def _with_trace(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Adds the trace id to records that are logged while a message or step is worked on."""

    work = CURRENT_WORK.get()
    if work is not None:
        event.setdefault("trace_id", work.trace.trace_id)
    return event


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
