"""The lake: what leaves Redis for good, through Spark, into tables.

`session` starts Spark with the formats of this package known to it, `register` makes them known
to a session that exists already. Both import Spark when they are called and not before, so that
naming the lake costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from angarium.runtime.settings import CommonSettings

__all__ = ["register", "session"]


def session(
    settings: CommonSettings | None = None,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Spark on this machine, or on the cluster that `master` names."""
    from angarium.lake.spark import start

    return start(settings, master=master, conf=conf)


def register(spark: SparkSession) -> None:
    """Make `redis-stream`, `angarium-archive` and `delta` known to a session."""
    from angarium.lake.spark import make_known

    make_known(spark)
