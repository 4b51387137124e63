"""Structured logs on stderr, through the standard library's loggers.

A terminal gets aligned lines, everything else gets one JSON object per line. Records of other
libraries (uvicorn, asyncio) get the same format. `logger` works without `configure`, so a program
that uses Angarium as a library keeps its own logging. structlog is imported on first use, because
its import takes longer than the whole of `angarium --help`.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger
    from structlog.typing import EventDict, Processor

from angarium.runtime.trace import CURRENT_WORK


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
