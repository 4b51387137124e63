"""One row for each life: events brought together by subject, for Spark and DuckDB alike.

`PARTIAL` sums up some events, `COMBINED` brings several such rows of a subject together: every
column is a sum, a minimum, a maximum, or the value that came last, so the order in which pieces are
combined does not matter, and one piece gives the same as many. The tasks that read the journal
write pieces, readers and compaction combine them; `partial` and `combined` are the same for
DataFrames. Text and functions of DataFrames only: no Python function sees a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from angarium.lake.jobs.lifecycles import CATALOGUE, FAILED_STATUSES, STAGES, Role
from angarium.lake.schemas import MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# How two rows of one subject become one. `by` names the column that says which came last.
SUMS = ("events", "announces", "accepts", "reopens", "ends", "retries")
LEAST = (
    "first_sequence",
    "begin_sequence",
    "end_sequence",
    *(f"{stage}_first_ms" for stage in STAGES),
)
GREATEST = (
    "attempts",
    "last_sequence",
    "begin_last_sequence",
    "end_last_sequence",
    "step_sequence",
    *(f"{stage}_last_ms" for stage in STAGES),
)
LATEST: Mapping[str, str] = MappingProxyType(
    {
        "key": "last_sequence",
        "owner": "last_sequence",
        "pipeline": "last_sequence",
        "node": "last_sequence",
        "last_event": "last_sequence",
        "reference": "begin_last_sequence",
        "outcome": "end_last_sequence",
        "status": "end_last_sequence",
        "detail": "last_sequence",
    }
)
_KEY = ", ".join(MESSAGES.key)


def partial(events: DataFrame) -> DataFrame:
    """Events by subject, in the columns of `messages`."""
    return events.sparkSession.sql(PARTIAL, events=events)


def combined(rows: DataFrame) -> DataFrame:
    """Rows of the same subject as one."""
    return rows.sparkSession.sql(COMBINED, rows=rows)


def _latest(value: str, by: str) -> str:
    """The last value that was told: rows without one do not count."""
    return f"max_by({value}, case when {value} is not null then {by} end)"


def _catalogue() -> str:
    """As a small table to be joined: as a map in the plan it takes Spark seconds to compile."""
    rows = ", ".join(
        f"('{each.room}', '{each.event}', '{each.account}', '{each.role.value}', "
        f"'{each.outcome}', '{each.stage}', {str(each.retry).lower()})"
        for each in CATALOGUE
        if each.role is not Role.TOLD
    )
    return f"(values {rows}) as c(room, event, account, role, ending, stage, retry)"


def _finished(rows: str) -> str:
    """With what follows from the other columns; an outcome of a life that began again is none."""
    ended = "end_last_sequence > coalesce(begin_last_sequence, -1)"
    derived = {
        "outcome": f"case when {ended} then outcome end",
        "wait_ms": "worked_first_ms - accepted_first_ms",
        "latency_ms": f"case when {ended} then ended_last_ms - accepted_first_ms end",
    }
    columns = ", ".join(
        f"{derived[name]} as {name}" if name in derived else name for name in MESSAGES.names
    )
    return f"select {columns} from ({rows}) as whole"


def _partial() -> str:
    failed = ", ".join(f"'{each}'" for each in FAILED_STATUSES)
    begins = ", ".join(f"'{role.value}'" for role in (Role.ANNOUNCE, Role.ACCEPT, Role.REOPEN))
    # What was told with its acceptance is its reference, not what became of it.
    told = f"""
select e.*, c.account, c.role, c.stage, c.retry,
  case when e.room = 'transactions' and e.event = 'completed' and e.status in ({failed})
    then 'failed' else c.ending end as ending,
  case when c.role in ({begins}) then sequence end as begun,
  case when c.role = '{Role.ACCEPT.value}' then sequence end as accepted,
  case when c.role = '{Role.END.value}' then sequence end as ended,
  case when c.role = '{Role.STEP.value}' then sequence end as stepped,
  case when c.role <> '{Role.ACCEPT.value}' then detail end as told
from {{events}} e join {_catalogue()} on e.room = c.room and e.event = c.event"""
    counts = {
        Role.ANNOUNCE: "announces", Role.ACCEPT: "accepts", Role.REOPEN: "reopens",
        Role.END: "ends",
    }  # fmt: skip
    columns = [
        "count(*) as events",
        *(f"count(case when role = '{role.value}' then 1 end) as {name}"
          for role, name in counts.items()),
        "count(case when retry then 1 end) as retries",
        "max(attempt) as attempts",
        "min(sequence) as first_sequence",
        "max(sequence) as last_sequence",
        "min(begun) as begin_sequence",
        "max(begun) as begin_last_sequence",
        "min(ended) as end_sequence",
        "max(ended) as end_last_sequence",
        "max(stepped) as step_sequence",
        *(f"{_latest(name, 'sequence')} as {name}"
          for name in ("key", "owner", "pipeline", "node")),
        "max_by(event, sequence) as last_event",
        f"{_latest('detail', 'accepted')} as reference",
        "max_by(ending, ended) as outcome",
        f"{_latest('status', 'ended')} as status",
        f"{_latest('told', 'sequence')} as detail",
        *(f"{least}(case when stage = '{stage}' then at_ms end) as {stage}_{end}_ms"
          for stage in STAGES for least, end in (("min", "first"), ("max", "last"))),
    ]  # fmt: skip
    return _finished(f"select {_KEY}, {', '.join(columns)} from ({told}) as told group by {_KEY}")


def _combined() -> str:
    columns = [
        *(f"cast(sum({name}) as bigint) as {name}" for name in SUMS),
        *(f"min({name}) as {name}" for name in LEAST),
        *(f"max({name}) as {name}" for name in GREATEST),
        *(f"{_latest(name, by)} as {name}" for name, by in LATEST.items()),
    ]
    return _finished(f"select {_KEY}, {', '.join(columns)} from {{rows}} as rows group by {_KEY}")


PARTIAL = _partial()
COMBINED = _combined()
