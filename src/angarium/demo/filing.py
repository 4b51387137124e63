"""The story in the lake: filed by Spark, audited there, and read back for the balance.

The commands are those a user would give (`lake run --once`, `lake audit`, `lake report`), so the
story's own process needs no Java. Where the lake is not installed, or no Java is there, the answer
is the reason, and the balance is drawn up from the journal.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from angarium.demo.ledger import Ledger
from angarium.redis.embedded.supervisor import HOST, Folder, read_record
from angarium.runtime.errors import AngariumError
from angarium.runtime.journal import Entry, Event
from angarium.settings import Settings

COMMAND_S_MAX = 300.0
PROBLEM_CHARS_MAX = 300


class Filed(msgspec.Struct, frozen=True):
    """What the lake's own audit says of every module."""

    events: int
    wrong: int
    findings: list[dict[str, Any]]


class FilingFailed(AngariumError):
    code = "filing_failed"


def why_not(settings: Settings) -> str | None:
    """Why there is no lake here; None if there can be one."""
    try:
        from angarium.lake.java import find_java
        from angarium.lake.tables import check_packages

        check_packages()
        find_java(settings.home)
    except (ImportError, AngariumError) as error:
        return str(error)
    return None


async def file(env: Mapping[str, str], home: Path) -> Filed:
    """Everything that the journal holds goes into the lake, and is audited there."""
    env = {**env, "ANGARIUM_REDIS_URL": _redis_url(home)}
    await _angarium(env, "lake", "run", "--once", "--json")
    _, text = await _angarium(env, "lake", "audit", "--json", codes=(0, 1))
    found = msgspec.json.decode(text, type=Filed)
    await _angarium(env, "lake", "report", "--output", str(home / "report.html"))
    return found


def _redis_url(home: Path) -> str:
    """The story's own server, which it holds: Spark's processes need an address, not a folder."""
    record = read_record(Folder(home / "redis").record)
    if record is None:
        raise FilingFailed("the story's server is gone")
    return f"redis://:{record.password}@{HOST}:{record.port}/0"


async def read_back(settings: Settings) -> Ledger:
    return await asyncio.to_thread(_read_back, settings)


def _read_back(settings: Settings) -> Ledger:
    from angarium.lake.query import connect, run
    from angarium.lake.tables import Lake

    ledger = Ledger()
    sql = (
        "select at_ms, module, actor, event, subject, key, detail from events "
        "order by partition, sequence"
    )
    with connect(Lake.of(settings), ("events",)) as connection:
        for at_ms, module, actor, event, subject, key, detail in run(connection, sql).rows:
            one = Event(event, subject, key=key, detail=detail)
            ledger.read(Entry("", module, at_ms, actor, 0, [one]))
    return ledger


async def _angarium(
    env: Mapping[str, str], *arguments: str, codes: tuple[int, ...] = (0,)
) -> tuple[int, bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANGARIUM_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "angarium.cli.main", *arguments, env={**kept, **env},
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
        raise FilingFailed(f"angarium {' '.join(arguments[:2])}: {last[:PROBLEM_CHARS_MAX]}")
    return process.returncode, out
