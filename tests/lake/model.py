"""The rules of the lake's tables once more, in plain Python: what Spark's answers are held to.

Events are taken one by one in the order of their numbers; nothing is summed up, combined or cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from angarium.lake.catalogue import CATALOGUE, FAILED_STATUSES
from angarium.runtime.module import Part

BEGINS = (Part.ANNOUNCE, Part.ACCEPT, Part.REOPEN)
COUNTS = {
    Part.ANNOUNCE: "announces", Part.ACCEPT: "accepts", Part.REOPEN: "reopens", Part.END: "ends",
}  # fmt: skip
Event = Mapping[str, Any]
Row = dict[str, Any]


def messages(events: Iterable[Event]) -> tuple[list[Row], list[Row]]:
    """Rows that have ended, and rows that are open."""
    current: dict[tuple[Any, ...], Row] = {}
    done: list[Row] = []
    for event in sorted(events, key=lambda each: (each["partition"], each["sequence"])):
        meaning = CATALOGUE.get((event["module"], event["event"]))
        if meaning is None or meaning.part in (Part.NONE, Part.BESIDE):
            continue
        key = (event["partition"], event["module"], meaning.account, event["subject"])
        row = current.get(key)
        if row is not None and meaning.part in BEGINS and row["outcome"] is not None:
            done.append(current.pop(key))
            row = None
        if row is None:
            row = current[key] = _fresh(key)
        _apply(row, event, meaning.part)
    ended = [row for row in current.values() if row["outcome"] is not None]
    return [*done, *ended], [row for row in current.values() if row["outcome"] is None]


def _fresh(key: tuple[Any, ...]) -> Row:
    names = (
        "key owner pipeline node reference last_event outcome status detail attempts "
        "first_sequence begin_sequence end_last_sequence accepted_ms worked_ms archived_ms ended_ms"
    )
    counts = dict.fromkeys((*COUNTS.values(), "events", "retries"), 0)
    identity = dict(zip(("partition", "module", "account", "subject"), key, strict=True))
    return {**identity, **counts, **dict.fromkeys(names.split())}


def _apply(row: Row, event: Event, part: Part) -> None:
    meaning, at_ms = CATALOGUE[event["module"], event["event"]], event["at_ms"]
    row["events"] += 1
    row["retries"] += meaning.retry
    if part in COUNTS:
        row[COUNTS[part]] += 1
    if event["attempt"] is not None:
        row["attempts"] = max(row["attempts"] or 0, event["attempt"])
    row["first_sequence"] = row["first_sequence"] or event["sequence"]
    if part in BEGINS:
        row["begin_sequence"] = row["begin_sequence"] or event["sequence"]
    if event["key"] is not None:
        row["key"], row["pipeline"] = event["key"], event["pipeline"]
    for name in ("owner", "node"):
        row[name] = event[name] if event[name] is not None else row[name]
    if event["detail"] is not None:
        row["reference" if part is Part.ACCEPT else "detail"] = event["detail"]
    row["last_event"] = event["event"]
    if part is Part.END:
        failed = event["event"] == "completed" and event["status"] in FAILED_STATUSES
        row["outcome"] = (
            "failed" if failed and event["module"] == "transactions" else meaning.outcome
        )
        row["status"], row["ended_ms"] = event["status"], at_ms
        row["end_last_sequence"] = event["sequence"]
    stage = f"{meaning.stage}_ms"
    if meaning.stage in ("accepted", "worked", "archived"):
        row[stage] = at_ms if row[stage] is None else min(row[stage], at_ms)


def statistics(events: Iterable[Event], interval_s: int) -> Counter[tuple[Any, ...]]:
    counts: Counter[tuple[Any, ...]] = Counter()
    for each in events:
        if (each["module"], each["event"]) == ("transactions", "pipeline_stored"):
            continue
        group = (each["key"] or "") if each["module"] == "transactions" else ""
        start = each["at_ms"] // (1000 * interval_s) * interval_s
        names = (each["pipeline"] or "", each["owner"] or "", each["event"])
        counts[start, each["module"], group, *names] += 1
    return counts
