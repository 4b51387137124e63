"""Writes the demo's journal to the lake, audits it there, and reads the events back.

It runs the commands that a user runs (`lake run --once`, `lake audit`, `lake report`), so the
demo's process needs no Java. Without the lake's packages or Java, the demo reports the reason and
audits the journal.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from angarium.demo.audit import JournalAudit
from angarium.redis.embedded.supervisor import HOST, Folder, read_record
from angarium.runtime.errors import AngariumError
from angarium.runtime.journal import Event, JournalEntry
from angarium.settings import Settings

COMMAND_S_MAX = 300.0
PROBLEM_CHARS_MAX = 300


class LakeAuditOutput(msgspec.Struct, frozen=True):
    """The output of `lake audit --json`."""

    events: int
    wrong: int
    findings: list[dict[str, Any]]


class LakeCommandFailed(AngariumError):
    code = "filing_failed"


def why_unavailable(settings: Settings) -> str | None:
    """The reason the lake can't run here, or None."""
    try:
        from angarium.lake.java import find_java
        from angarium.lake.tables import check_packages

        check_packages()
        find_java(settings.home)
    except (ImportError, AngariumError) as error:
        return str(error)
    return None


async def audit_in_lake(env: Mapping[str, str], home: Path) -> LakeAuditOutput:
    """Copy the journal to the lake, and audit and report it there."""
    env = {**env, "ANGARIUM_REDIS_URL": _redis_url(home)}
    await _angarium(env, "lake", "run", "--once", "--json")
    _, text = await _angarium(env, "lake", "audit", "--json", codes=(0, 1))
    found = msgspec.json.decode(text, type=LakeAuditOutput)
    await _angarium(env, "lake", "report", "--output", str(home / "report.html"))
    return found


def _redis_url(home: Path) -> str:
    """The demo's embedded server. Spark's processes need its address; they can't start it."""
    record = read_record(Folder(home / "redis").record)
    if record is None:
        raise LakeCommandFailed("the demo's Redis server is not running")
    return f"redis://:{record.password}@{HOST}:{record.port}/0"


async def audit_events(settings: Settings) -> JournalAudit:
    return await asyncio.to_thread(_audit_events, settings)


def _audit_events(settings: Settings) -> JournalAudit:
    from angarium.lake.query import connect, run
    from angarium.lake.tables import Lake

    journal_audit = JournalAudit()
    sql = (
        "select at_ms, module, actor, event, subject, key, detail from events "
        "order by partition, sequence"
    )
    with connect(Lake.of(settings), ("events",)) as connection:
        for at_ms, module, actor, event, subject, key, detail in run(connection, sql).rows:
            one = Event(event, subject, key=key, detail=detail)
            journal_audit.read(JournalEntry("", module, at_ms, actor, 0, [one]))
    return journal_audit


async def _angarium(
    env: Mapping[str, str], *arguments: str, codes: tuple[int, ...] = (0,)
) -> tuple[int, bytes]:
    others = {name: value for name, value in os.environ.items() if not name.startswith("ANGARIUM_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "angarium.cli.main", *arguments, env={**others, **env},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(COMMAND_S_MAX):
            out, errors = await process.communicate()
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    if process.returncode not in codes:
        last = " ".join(errors.decode(errors="replace").strip().splitlines()[-1:])
        raise LakeCommandFailed(f"angarium {' '.join(arguments[:2])}: {last[:PROBLEM_CHARS_MAX]}")
    return process.returncode, out
