"""`angarium lake shell`, `erase` and `rebuild`: work on the tables that a person asks for."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from angarium.cli.lake_run import progress, spark_aside
from angarium.cli.output import print_line

if TYPE_CHECKING:
    from angarium.settings import Settings

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one value.")]


def shell(
    context: typer.Context,
    command: Annotated[
        str | None, typer.Option("--command", "-c", help="Run this and end.")
    ] = None,
    master: Annotated[
        str | None, typer.Option(help="Where Spark runs; else as ANGARIUM_LAKE__MASTER says.")
    ] = None,
) -> int:
    """Open Python with Spark, and every table of the lake in `spark.sql`."""
    from angarium.cli.installation import load_installation
    from angarium.lake.shell import run_shell

    settings = load_installation("lake_url")
    with spark_aside(settings, context.obj.debug):
        run_shell(settings, master, command)
    return 0


def erase(
    context: typer.Context,
    key: Annotated[str, typer.Option("--key", help="Recipient key, conversation or the like.")],
    as_json: Json = False,
) -> int:
    """Remove every row that names a key, and the events of its messages, from all tables."""
    from angarium.cli.installation import load_installation
    from angarium.lake.erasure import erase_key
    from angarium.lake.spark import start
    from angarium.lake.tables import Lake
    from angarium.runtime.errors import InputInvalid

    if not key.strip():
        raise InputInvalid("the key is empty; name one with --key")
    settings = load_installation("lake_url")
    with progress(quiet=as_json, counts=False) as tell, spark_aside(settings, context.obj.debug):
        tell({"state": "looking for the key in every table"})
        spark = start(settings)
        try:
            found = erase_key(Lake.of(settings), spark, key)
        finally:
            spark.stop()
    if as_json:
        print_line(json.dumps({name: asdict(done) for name, done in found.items()}))
        return 0
    for name, done in found.items():
        print_line(f"{name}: {done.rows} rows removed, {done.files} files written anew")
    print_line("the lake has nothing of it" if not found else "the lake has nothing of it any more")
    return 0


def rebuild(
    context: typer.Context,
    table: Annotated[str, typer.Argument(help="Such as messages or stats_fine.")],
    as_json: Json = False,
) -> int:
    """Make a table anew from the events; no other process may fill the lake meanwhile."""
    from angarium.cli.installation import load_installation
    from angarium.lake.rebuild import rebuild as make_anew
    from angarium.lake.runner import lease_of, redis_of
    from angarium.lake.spark import start
    from angarium.lake.tables import Lake
    from angarium.runtime.errors import Conflict

    settings: Settings = load_installation("lake_url")
    lake = Lake.of(settings)
    with (
        progress(quiet=as_json, counts=False) as tell,
        spark_aside(settings, context.obj.debug),
        redis_of(settings) as url,
        lease_of(settings, lake, url) as lease,
    ):
        if not lease.acquire():
            raise Conflict(f"{lease.holder} fills this lake now; stop it, then rebuild")
        tell({"state": f"making {table} anew"})
        spark = start(settings)
        try:
            found = make_anew(spark, lake, table)
        finally:
            spark.stop()
    if as_json:
        print_line(json.dumps(found))
    else:
        print_line("; ".join(f"{name} has {rows} rows" for name, rows in found.items()))
    return 0
