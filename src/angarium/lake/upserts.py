"""How rows of `messages` and the statistics are brought up to date, in the words of a merge.

The same sums, minima, maxima and latest values as in `jobs/messages.py`, where `t` is the row in
the table and `s` the one of this batch. A test holds both to the same answers. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from angarium.lake.jobs.messages import GREATEST, LATEST, LEAST, SUMS


def _messages() -> dict[str, str]:
    found = {name: f't."{name}" + s."{name}"' for name in SUMS}
    found |= {name: f'least(t."{name}", s."{name}")' for name in LEAST}
    found |= {name: f'greatest(t."{name}", s."{name}")' for name in GREATEST}
    for name, by in LATEST.items():
        newer = f'coalesce(s."{by}", -1) >= coalesce(t."{by}", -1)'
        found[name] = (
            f'case when {newer} then coalesce(s."{name}", t."{name}") '
            f'else coalesce(t."{name}", s."{name}") end'
        )
    ended = f"{found['end_last_sequence']} > coalesce({found['begin_last_sequence']}, -1)"
    since = found["accepted_first_ms"]
    # The outcome of a life that began again is not its outcome any more.
    found["outcome"] = f"case when {ended} then {found['outcome']} end"
    found["wait_ms"] = f"{found['worked_first_ms']} - {since}"
    found["latency_ms"] = f"case when {ended} then {found['ended_last_ms']} - {since} end"
    return found


MESSAGES: Mapping[str, str] = MappingProxyType(_messages())
STATISTICS: Mapping[str, str] = MappingProxyType({"count": 't."count" + s."count"'})
# A row that is there stays as it is.
KEEP: Mapping[str, str] = MappingProxyType({})
