"""Around a command of the lake in a terminal: signals, the words of Spark, a progress bar."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from angarium.settings import Settings

LOG = "lake-run.log"  # in the home folder; that of the run before is beside it


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """The batch that is being stored is finished first."""
    stop = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: stop.set()) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def spark_aside(settings: Settings, debug: bool) -> Iterator[None]:
    """What Spark says goes to a file, and an error names it; with --debug all stays on stderr."""
    if debug:
        yield
        return
    from angarium.lake.errors import LakeStopped
    from angarium.lake.pipeline import reason_of
    from angarium.lake.spark import stderr_in_file
    from angarium.runtime.errors import AngariumError

    log = settings.home.absolute() / LOG
    try:
        with stderr_in_file(log):
            yield
    except LakeStopped as error:
        raise LakeStopped(f"{error}; Spark's log is {log}") from None
    except AngariumError:
        raise
    except Exception as error:
        raise LakeStopped(f"Spark failed: {reason_of(str(error))}; its log is {log}") from error


@contextmanager
def progress(*, quiet: bool, counts: bool = True) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A bar on stderr for people; nothing when JSON is asked for or nobody is there to look."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    numbers = (MofNCompleteColumn(),) if counts else ()
    columns = (TextColumn("{task.description}"), BarColumn(), *numbers, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)

        def tell(report: dict[str, Any]) -> None:
            values: dict[str, Any] = {"completed": int(report.get("events", 0))}
            if "state" in report:
                values["description"] = str(report["state"])
            if "waiting" in report:
                values["total"] = int(report["waiting"]) or None
            progress.update(task, **values)

        yield tell
