"""Counts of events by window, room, node group, pipeline and owner, for Spark and DuckDB alike.

Windows are cut by event time, the Redis time of the transition, exactly as the scripts of the
transactions room cut theirs; so a closed window has the same counts here and there. Rows of one
window that come with later batches are added to it: nothing is ever too late to be counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium.lake.schemas import STATS_FINE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Told in the journal, but nothing that happened to a transaction: the scripts don't count it.
NOT_COUNTED = ("pipeline_stored",)
_KEY = ", ".join(STATS_FINE.key)

STATISTICS = f"""
select {_KEY}, count(*) as count from (
  select cast(floor(at_ms / (1000 * {{interval_s}})) * {{interval_s}} as bigint) as start_s,
    room, event,
    case when room = 'transactions' then coalesce(key, '') else '' end as node_group,
    coalesce(pipeline, '') as pipeline, coalesce(owner, '') as owner
  from {{events}} as e
  where not (room = 'transactions' and event in ({", ".join(f"'{e}'" for e in NOT_COUNTED)}))
) as cut group by {_KEY}
"""
COARSER = f"""
select {_KEY}, cast(sum(count) as bigint) as count from (
  select cast(floor(start_s / {{interval_s}}) * {{interval_s}} as bigint) as start_s,
    room, node_group, pipeline, owner, event, count
  from {{rows}} as fine
) as cut group by {_KEY}
"""
COMBINED = f"select {_KEY}, cast(sum(count) as bigint) as count from {{rows}} as r group by {_KEY}"


def statistics(events: DataFrame, interval_s: int) -> DataFrame:
    """The counts of some events."""
    return events.sparkSession.sql(STATISTICS, events=events, interval_s=interval_s)


def coarser(rows: DataFrame, interval_s: int) -> DataFrame:
    """Counts of small windows added up to larger ones, which they fit into without a rest."""
    return rows.sparkSession.sql(COARSER, rows=rows, interval_s=interval_s)


def combined(rows: DataFrame) -> DataFrame:
    """Counts of the same window and names, added up."""
    return rows.sparkSession.sql(COMBINED, rows=rows)
