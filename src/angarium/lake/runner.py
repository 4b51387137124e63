"""A run of the lake as a process: Redis found, Spark started, the queries watched until they end.

The same for `angarium lake run` and for the child of the role `lake`, which is this module run by
itself: it is told its settings on stdin, says what it does on stdout, a JSON object a line, and
ends when stdin does, so it never outlives who started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TextIO
from urllib.parse import quote

from angarium.lake.audit import audit
from angarium.lake.checkpoint import entry_id_of, stored_positions
from angarium.lake.errors import LakeStopped
from angarium.lake.pipeline import SLOW_START, Figures, Pipeline, reason_of
from angarium.lake.runner_lease import RunnerLease
from angarium.lake.settings import LakeSettings
from angarium.lake.spark import executors
from angarium.lake.tables import Lake
from angarium.lake.user_jobs import jobs_of
from angarium.redis.embedded.server import EmbeddedServer
from angarium.redis.options import Durability
from angarium.runtime.application import Application, load_application
from angarium.runtime.errors import AngariumError
from angarium.runtime.journal import Journal, decode_entry
from angarium.runtime.runtime import Runtime
from angarium.runtime.settings import CommonSettings

TELL_S = 1.0
STARTS_MAX = 4
# A standalone master that was restarted without its memory gives a running driver no others.
EXECUTORS_MISSING_S = 120
Report = dict[str, float | str]
Tell = Callable[[Report], None]


def run_lake(
    settings: CommonSettings,
    *,
    once: bool,
    stop: threading.Event,
    tell: Tell,
    master: str | None = None,
) -> Report:
    """Until all is stored (`once`), or until `stop` is set; what was done.

    One process fills a lake at a time: with `once` this ends at once while another one does,
    else it waits until the other has ended.
    """
    lake = Lake.of(settings)
    lake.check()
    app = load_application(settings.app) if settings.app else Application()
    jobs_of(app)
    with redis_of(settings) as url, lease_of(settings, lake, url) as lease:
        tell({"state": "starting", "waiting": asyncio.run(_waiting(settings, lake))})
        if not lease.acquire():
            elsewhere: Report = {"state": "elsewhere", "holder": lease.holder}
            tell(elsewhere)
            if once or not lease.wait(stop):
                return elsewhere
        from angarium.lake import session

        spark = session(settings, master=master or settings.group(LakeSettings).master)
        figures = Figures()
        try:
            for start in range(STARTS_MAX):
                pipeline = Pipeline(spark, settings, url, app)
                pipeline.figures = figures
                try:
                    return _watch(pipeline, settings, once, stop, tell, lease)
                except LakeStopped as error:
                    if SLOW_START not in str(error) or start + 1 == STARTS_MAX:
                        raise
        finally:
            spark.stop()
    raise AssertionError("not reached")


def lease_of(settings: CommonSettings, lake: Lake, url: str) -> RunnerLease:
    options = replace(settings.redis_options(), url=url, client_name="angarium-lake")
    return RunnerLease(options, settings.runtime_options().keyspace, lake.identity(), lake.url)


def _watch(
    pipeline: Pipeline,
    settings: CommonSettings,
    once: bool,
    stop: threading.Event,
    tell: Tell,
    lease: RunnerLease,
) -> Report:
    report: Report = {"state": "running"}
    audit_at = time.monotonic() + settings.group(LakeSettings).audit_interval_s
    worked_at = time.monotonic()
    pipeline.start(once=once)
    try:
        while not stop.is_set():
            ended = pipeline.wait(TELL_S)
            report |= pipeline.figures.shown()
            if lease.lost.is_set():
                raise LakeStopped("another process fills this lake now; this one has ended")
            if executors(pipeline.spark):
                worked_at = time.monotonic()
            elif time.monotonic() > worked_at + EXECUTORS_MISSING_S:
                raise LakeStopped(
                    f"Spark has had no executors for {EXECUTORS_MISSING_S} s: look at its workers, "
                    "and whether its master came back without spark.deploy.recoveryMode"
                )
            if ended:
                report |= audited(settings, pipeline)
                break
            if time.monotonic() >= audit_at:
                report |= audited(settings, pipeline)
                audit_at = time.monotonic() + settings.group(LakeSettings).audit_interval_s
            tell(report)
    finally:
        pipeline.stop()
    report |= {"state": "done" if once else "stopped"}
    return report


def audited(settings: CommonSettings, pipeline: Pipeline) -> Report:
    """One that fails is reported and tried again in time: the tables matter more."""

    async def look() -> Report:
        pipeline.follow_up()
        async with Runtime.open(settings) as runtime:
            found = await audit(runtime, pipeline.spark, pipeline.tables)
        return {"audit_wrong": found.wrong, "audited_ms": found.audited_ms}

    try:
        return asyncio.run(look()) if pipeline.lake.open("events") is not None else {}
    except AngariumError as error:
        return {"audit_error": str(error)}
    except Exception as error:
        return {"audit_error": reason_of(f"{type(error).__name__}: {error}")}


async def _waiting(settings: CommonSettings, lake: Lake) -> int:
    """Events in the journal that the lake does not have; also sees that Redis agrees with us."""
    waiting = 0
    async with Runtime.open(settings) as runtime:
        journal, positions = Journal(runtime), stored_positions(lake, runtime.keyspace)
        for partition, position in positions.items():
            status = await journal.status(partition)
            for entry in await journal.read(partition, entry_id_of(max(position, 0)), 1):
                with contextlib.suppress(AngariumError):
                    waiting += status.events - decode_entry(*entry).first_sequence + 1
    return waiting


@contextlib.contextmanager
def redis_of(settings: CommonSettings) -> Iterator[str]:
    """The address of Redis for processes that are not ours; an embedded one is held meanwhile."""
    if settings.redis_url != "embedded":
        yield settings.redis_url
        return
    memory_only = settings.durability is Durability.MEMORY
    server = EmbeddedServer(settings.home, fsync="everysec" if memory_only else "always")
    try:
        address = asyncio.run(_address(server))
        yield f"redis://{address}"
    finally:
        server.release()


async def _address(server: EmbeddedServer) -> str:
    found = await server.address()
    secret = f":{quote(found.password, safe='')}@" if found.password else ""
    return f"{secret}{found.host}:{found.port}"


# As a child of the role `lake`


def main() -> int:
    from angarium.runtime import log

    log.configure()
    # Java inherits our stdout, and may outlive us by a moment: the pipe to our parent must end with
    # us. So everybody's stdout is stderr, and ours is a copy that nobody inherits.
    heard = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    tell = partial(_tell, heard)
    from angarium.settings import Settings

    settings = Settings(**json.loads(sys.stdin.readline()))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    # A terminal's Ctrl-C reaches parent and child; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_await_end_of_stdin, args=(stop,), daemon=True).start()
    try:
        run_lake(settings, once=False, stop=stop, tell=tell)
    except AngariumError as error:
        tell({"state": "failed", "reason": str(error)})
        return 1
    except Exception as error:
        tell({"state": "failed", "reason": reason_of(f"{type(error).__name__}: {error}")})
        return 1
    return 0


def _await_end_of_stdin(stop: threading.Event) -> None:
    while sys.stdin.readline():
        pass
    stop.set()


def _tell(heard: TextIO, report: Report) -> None:
    # Nobody left to hear it: the end of stdin says so too.
    with contextlib.suppress(OSError):
        heard.write(json.dumps(report) + "\n")
        heard.flush()


def told_to_child(settings: CommonSettings) -> dict[str, Any]:
    """The settings that a child needs; no secrets of other modules among them."""
    return settings.model_dump(
        mode="json",
        include={
            "app": True,
            "home": True,
            "redis_url": True,
            "database_url": True,
            "lake_url": True,
            "partitions": True,
            "prefix": True,
            "durability": True,
            "journal": True,
            "lake": True,
            "dispatch": {"stream"},
            "transactions": {
                "persisting_permission_lock1_period",
                "persisting_permission_lock2_period",
            },
        },
    )


if __name__ == "__main__":
    sys.exit(main())
