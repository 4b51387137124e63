"""`angarium lake shell`: Python with Spark in it, every table of the lake in `spark.sql`."""

from __future__ import annotations

import code
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from angarium import lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from angarium.runtime.settings import CommonSettings

ROWS_SHOWN = 20


def names_in_shell(spark: SparkSession, settings: CommonSettings) -> dict[str, Any]:
    """What is known there: `spark`, `sql`, `tables` and the functions of Spark SQL as `f`."""
    from pyspark.sql import functions

    def sql(text: str) -> None:
        """Ask, and print the first rows."""
        spark.sql(text).show(ROWS_SHOWN, truncate=False)

    def tables() -> Sequence[str]:
        """Look at the tables anew; their names."""
        return lake.show_tables(spark, settings)

    return {"spark": spark, "sql": sql, "tables": tables, "f": functions}


def run_shell(
    settings: CommonSettings, master: str | None = None, command: str | None = None
) -> None:
    """Read what a person types, or one command, or what stands on stdin."""
    spark = lake.session(settings, master=master)
    names = names_in_shell(spark, settings)
    try:
        # A shell runs what the person who started it has typed.
        if command is not None:
            exec(compile(command, "<command>", "exec"), names)  # nosec B102
        elif not sys.stdin.isatty():
            exec(compile(sys.stdin.read(), "<stdin>", "exec"), names)  # nosec B102
        else:
            code.interact(_banner(names["tables"]()), local=names, exitmsg="")
    finally:
        spark.stop()


def _banner(tables: Sequence[str]) -> str:
    return (
        f"tables: {', '.join(tables) or 'none yet'}\n"
        'spark, f (pyspark.sql.functions), sql("select …"), tables() for newer rows; Ctrl-D ends'
    )
