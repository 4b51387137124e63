"""The lake: what leaves Redis for good, through Spark, into tables.

`session` starts Spark with the formats of this package known to it and the lake's tables as views,
`register` does the same to a session that exists already, also one of Spark Connect. Both import
Spark when they are called and not before, so that naming the lake costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from angarium.runtime.settings import CommonSettings

__all__ = ["register", "session", "show_tables"]


def session(
    settings: CommonSettings | None = None,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Spark where the settings or `master` say, with every table of the lake in `spark.sql`."""
    from angarium.lake.spark import start
    from angarium.settings import load

    settings = settings or load()
    spark = start(settings, master=master, conf=conf)
    show_tables(spark, settings)
    return spark


def show_tables(spark: SparkSession, settings: CommonSettings | None = None) -> list[str]:
    """Make views of the lake's tables as they are now; their names. Again for newer rows."""
    from angarium.lake import views
    from angarium.lake.tables import Lake
    from angarium.settings import load

    return views.show_tables(spark, Lake.of(settings or load()))


def register(spark: SparkSession, settings: CommonSettings | None = None) -> None:
    """Make `redis-stream`, `angarium-archive` and `angarium-delta` known to a session.

    With settings, also the lake's tables, as views.
    """
    from angarium.lake.spark import make_known

    make_known(spark)
    if settings is not None:
        show_tables(spark, settings)
