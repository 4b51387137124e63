"""Logs: structured, on stderr, through the standard library's loggers.

People at a terminal get aligned lines, everything else gets one JSON object per line. Records
of other libraries (uvicorn, asyncio) take the same road, so stderr has one format. `logger`
works without `configure`, so a script that uses Angarium as a library keeps its own set-up.
structlog is imported on first use only: it costs more than the whole of `angarium --help`.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger
    from structlog.typing import EventDict, Processor

from angarium.runtime.trace import IN_HAND


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
    # It tells of each of its plugins, in every process that opens the database.
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
    """What a function says while it has a message or a step in hand leads to its trace."""
    in_hand = IN_HAND.get()
    if in_hand is not None:
        event.setdefault("trace_id", in_hand.trace.trace_id)
    return event
