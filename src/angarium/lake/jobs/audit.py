"""The rules of the audit, in SQL that Spark and DuckDB read alike.

`VERDICTS` looks at each row of `messages` and says what it is: finished, in flight, begun before
the lake was, or unexplained; and whether it was doubled or out of order. `BALANCE` adds them up by
window, room and account. Both take `starts`, the first event that the lake has of each partition;
a partition whose first event has number 1 has no «before». `missing` are the lives that Redis was
asked for and did not have. Text and functions of DataFrames only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium.lake.jobs.lifecycles import ONCE, OUTCOMES
from angarium.lake.schemas import AUDIT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ONCE = " or ".join(f"(room = '{room}' and account = '{account}')" for room, account in ONCE)

# `begins` counts a beginning that must have been before the lake. A subject of 40 letters in
# routing is the hash of a message without an id: equal messages share it, and may come again.
VERDICTS = f"""
with counted as (
  select m.*,
    coalesce(s.first_sequence, 1) > 1
      and m.first_sequence < coalesce(m.begin_sequence, m.first_sequence + 1) as from_before,
    room = 'routing' and length(subject) = 40 as hashed,
    coalesce(accepted_first_ms, ended_first_ms, worked_first_ms, paused_first_ms,
             notified_first_ms, archived_first_ms) as since_ms
  from {{messages}} m left join {{starts}} s on m.partition = s.partition
), judged as (
  select *, accepts + reopens + case when from_before then 1 else 0 end as begins
  from counted
)
select partition, room, account, subject, key, reference, last_event, outcome, since_ms,
  accepts, from_before and accepts + reopens = 0 as earlier,
  case
    when begins = 0 and announces > 0 and ends = 0 then 'in_flight'
    when begins = 0 then 'unexplained'
    when begins > ends then 'in_flight'
    else 'finished'
  end as state,
  not hashed and begins > 0 and (ends > begins or begins - ends > 1
    or (accepts > 1 and ({_ONCE}))) as doubled,
  not hashed and not from_before and accepts + reopens > 0 and (
    first_sequence < begin_sequence
    or (end_sequence is not null and end_sequence < begin_sequence)
    or coalesce(step_sequence > end_last_sequence and end_last_sequence > begin_last_sequence,
                false)
  ) as out_of_order,
  archived_first_ms is not null as archived
from judged
"""

_FINISHED = ",\n  ".join(
    f"sum(case when v.state = 'finished' and v.outcome = '{each}' then 1 else 0 end) as {each}"
    for each in OUTCOMES
)
BALANCE = f"""
select {{audited_ms}} as audited_ms,
  cast(floor(v.since_ms / 1000.0 / {{window_s}}) * {{window_s}} as bigint) as start_s,
  v.room, v.account,
  sum(case when v.accepts > 0 then 1 else 0 end) as accepted,
  {_FINISHED},
  sum(case when v.state = 'in_flight' and n.subject is null then 1 else 0 end) as in_flight,
  sum(case when v.state = 'unexplained' or n.subject is not null then 1 else 0 end) as unexplained,
  sum(case when v.doubled then 1 else 0 end) as doubled,
  sum(case when v.out_of_order then 1 else 0 end) as out_of_order,
  sum(case when v.earlier then 1 else 0 end) as earlier
from ({VERDICTS}) v left join {{missing}} n
  on v.partition = n.partition and v.room = n.room and v.account = n.account
  and v.subject = n.subject
group by 1, 2, 3, 4
"""
# Numbers between two neighbours that nobody has, and numbers that were given out twice.
GAPS = """
select partition, before + 1 as first, sequence - 1 as last, at_ms
from (
  select partition, sequence, at_ms,
    lag(sequence) over (partition by partition order by sequence) as before
  from {events}
) as numbered
where sequence > before + 1
"""
REWOUND = """
select partition, sequence, count(*) as times from {events}
group by partition, sequence having count(*) > 1
"""
STARTS = "select partition, min(sequence) as first_sequence from {events} group by partition"


def starts(events: DataFrame) -> DataFrame:
    """The first event that there is of each partition."""
    return events.sparkSession.sql(STARTS, events=events)


def gaps(events: DataFrame) -> DataFrame:
    """Numbers of events that are missing between others."""
    return events.sparkSession.sql(GAPS, events=events)


def verdicts(messages: DataFrame, starts: DataFrame) -> DataFrame:
    """What each life is."""
    return messages.sparkSession.sql(VERDICTS, messages=messages, starts=starts)


def balance(
    messages: DataFrame,
    starts: DataFrame,
    missing: DataFrame,
    *,
    window_s: int,
    audited_ms: int,
) -> DataFrame:
    """Accepted, finished, in flight and what does not fit, by window, room and account."""
    found = messages.sparkSession.sql(
        BALANCE,
        messages=messages,
        starts=starts,
        missing=missing,
        window_s=window_s,
        audited_ms=audited_ms,
    )
    return found.select(*AUDIT.names)
