"""The audit: everything that was accepted has ended, is where it should be, or is named here.

Days whose messages have not changed since they were counted are not counted again; what is open is
looked for in Redis each time. A message that is not there may have ended a moment ago, so the
journal's newest entries, and the lake once more, are read before it is called unexplained. The role
`lake` runs it; `last_audit` reads what the newest run has left, without Spark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from angarium.lake import gold, silver
from angarium.lake.catalogue import ENDS
from angarium.lake.checkpoint import ENTRY, entry_id_of
from angarium.lake.presence import Open, Presence
from angarium.lake.schemas import AUDIT, FINDINGS
from angarium.lake.steps import LakeTables
from angarium.lake.tables import Lake
from angarium.runtime import keys
from angarium.runtime.journal import EntryUnreadable, Journal, decode_entry
from angarium.runtime.runtime import Runtime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# So many of a kind are named one by one; beyond that a list helps nobody.
NAMED_MAX = 1_000
# So many open messages are looked for at once.
LOOK_ROWS = 10_000
# A message is looked for so often before it counts as gone: things move while we look.
LOOKS = 3
DAYS = "days"
_COUNTS = [name for name in AUDIT.names if name not in ("audited_ms", *gold.WINDOW)]


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that does not fit."""

    kind: str
    module: str
    subject: str
    account: str = ""
    partition: int = 0
    key: str = ""
    why: str = ""


class Balance(msgspec.Struct, frozen=True):
    """One window of one account, as in the table `audit`."""

    audited_ms: int
    start_s: int
    module: str
    account: str
    accepted: int
    delivered: int
    expired: int
    cancelled: int
    dead: int
    failed: int
    in_flight: int
    unexplained: int
    doubled: int
    out_of_order: int
    earlier: int


class Audit(msgspec.Struct, frozen=True):
    """`findings` names what is wrong, up to a limit; `wrong` counts all of it."""

    audited_ms: int
    events: int
    rejects: int
    wrong: int
    balances: list[Balance]
    findings: list[Finding]

    @property
    def clean(self) -> bool:
        return self.wrong == 0


# Days


def count_days(spark: SparkSession, tables: LakeTables) -> list[str]:
    """Make latency, balances and busiest keys of days anew whose messages changed; those days."""
    messages, known = tables["messages"], tables["balances"]
    days: dict[str, list[str]] = {}
    for file in messages.files():
        days.setdefault(file.partition_values["date"] or "", []).append(file.path)
    digests = {day: _digest(paths) for day, paths in days.items()}
    before = known.read(spark).select("date", "files").distinct().collect()
    counted = {str(row.date): row.files for row in before}
    changed = sorted(day for day, digest in digests.items() if counted.get(day) != digest)
    if not changed:
        return []
    held = messages.frame(spark, messages.files({"date": changed})).cache()
    try:
        last = known.last_batch(DAYS)
        given: dict[str, Any] = {
            "writer": DAYS, "batch": 0 if last is None else last + 1, "where": {"date": changed},
        }  # fmt: skip
        tables["latency"].replace(gold.latency(held).coalesce(1), **given)
        tables["busiest"].replace(gold.busiest(held).coalesce(1), **given)
        pairs = spark.createDataFrame(
            [(day, digests[day]) for day in changed], "date string, files string"
        )
        pairs = pairs.selectExpr("cast(date as date) as date", "files")
        judged = _judged(held, tables["messages_open"].read(spark), tables["sequences"].read(spark))
        # Last, because it says from which files the day was counted.
        known.replace(gold.balances(judged, pairs).coalesce(1), **given)
    finally:
        held.unpersist()
    return changed


def _judged(ended: DataFrame, open_rows: DataFrame, sequences: DataFrame) -> DataFrame:
    """Verdicts on ended messages; an id that was accepted again in another row is doubled, too."""
    from pyspark.sql import functions as f

    columns = [*silver.KEY, "key", "accepts", "last_sequence"]
    again = gold.accepted_again(ended.select(*columns).unionByName(open_rows.select(*columns)))
    again = again.select(*silver.KEY, f.lit(True).alias("again"))
    verdicts = gold.verdicts(ended, sequences).join(f.broadcast(again), list(silver.KEY), "left")
    return verdicts.withColumn("doubled", f.expr("doubled or coalesce(again, false)"))


def _digest(paths: Iterable[str]) -> str:
    return hashlib.sha1("\n".join(sorted(paths)).encode(), usedforsecurity=False).hexdigest()


# The audit


async def audit(runtime: Runtime, spark: SparkSession, tables: LakeTables) -> Audit:
    """Draw up the balance, and file it."""
    tables.lake.need("events")
    audited_ms = await _now_ms(runtime)
    count_days(spark, tables)
    sequences = tables["sequences"].read(spark)
    open_rows = gold.verdicts(tables["messages_open"].read(spark), sequences).cache()
    try:
        missing = await _missing(runtime, spark, tables, open_rows)
        balances = _balances(spark, tables, open_rows, missing, audited_ms)
        findings = [_finding("unexplained", each) for each in missing]
        findings += _named(spark, tables, open_rows, balances)
    finally:
        open_rows.unpersist()
    wrong = sum(each.unexplained + each.doubled + each.out_of_order for each in balances)
    for finding, count in _numbers(tables, sequences):
        findings.append(finding)
        wrong += count
    events, rejects = (tables.lake.rows(name) for name in ("events", "rejects"))
    found = Audit(audited_ms, events, rejects, wrong, balances, findings[:NAMED_MAX])
    _file(spark, tables, found)
    return found


async def _now_ms(runtime: Runtime) -> int:
    owned = runtime.clock.now_ms()
    if owned is not None:
        return owned
    seconds, micros = await runtime.redis.call("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


async def _missing(
    runtime: Runtime, spark: SparkSession, tables: LakeTables, open_rows: DataFrame
) -> list[Open]:
    """Open messages that are nowhere."""
    positions = {
        partition: tables["events"].last_batch(
            f"{ENTRY}{runtime.keyspace.name(keys.JOURNAL, partition)}"
        )
        for partition in range(runtime.settings.partitions)
    }
    presence, gone = Presence(runtime), list[Open]()
    for some in _portions(open_rows):
        left: Sequence[Open] = some
        for _ in range(LOOKS):
            left = await presence.missing(left)
            if not left:
                break
        gone += left
    if not gone:
        return []
    # In this order: what left the journal in the meantime went into the lake first.
    ended = await _ended_since(runtime, positions)
    gone = [each for each in gone if (each.module, each.subject) not in ended]
    if gone:
        now = tables["messages_open"].read(spark).select(*silver.KEY)
        asked = spark.createDataFrame([_key(each) for each in gone], now.schema)
        still = {tuple(row) for row in asked.join(now, list(silver.KEY), "left_semi").collect()}
        gone = [each for each in gone if _key(each) in still]
    return gone


def _portions(open_rows: DataFrame) -> Iterator[list[Open]]:
    rows = open_rows.where("state = 'in_flight'").selectExpr(
        *silver.KEY, "coalesce(key, '')", "coalesce(reference, '')", "archived_ms is not null"
    )
    portion: list[Open] = []
    for row in rows.toLocalIterator():
        portion.append(Open(*row))
        if len(portion) == LOOK_ROWS:
            yield portion
            portion = []
    if portion:
        yield portion


def _key(each: Open) -> tuple[int, str, str, str]:
    return each.partition, each.module, each.account, each.subject


async def _ended_since(runtime: Runtime, positions: dict[int, int | None]) -> set[tuple[str, str]]:
    """What the journal has seen end behind what the lake has read."""
    journal = Journal(runtime)
    ended: set[tuple[str, str]] = set()
    for partition, position in positions.items():
        after = entry_id_of(position or 0)
        while entries := await journal.read(partition, after, 1_000):
            after = entries[-1][0].decode()
            for entry_id, fields in entries:
                try:
                    entry = decode_entry(entry_id, fields)
                except EntryUnreadable:
                    continue  # it will be among the rejects
                ended |= {
                    (entry.module, each.subject)
                    for each in entry.events
                    if (entry.module, each.event) in ENDS
                }
    return ended


def _balances(
    spark: SparkSession,
    tables: LakeTables,
    open_rows: DataFrame,
    missing: Sequence[Open],
    audited_ms: int,
) -> list[Balance]:
    from pyspark.sql import functions as f

    schema = open_rows.select(*silver.KEY).schema
    gone = spark.createDataFrame([_key(each) for each in missing], schema)
    gone = gone.withColumn("missing", f.lit(True))
    marked = open_rows.join(f.broadcast(gone), list(silver.KEY), "left")
    marked = marked.withColumn("missing", f.coalesce("missing", f.lit(False)))
    rows = gold.balance(marked).unionByName(
        tables["balances"].read(spark).select(*gold.WINDOW, *_COUNTS)
    )
    sums = rows.groupBy(*gold.WINDOW).agg(*(f.sum(name).alias(name) for name in _COUNTS))
    found = sums.orderBy(*gold.WINDOW).collect()
    return [Balance(audited_ms, **row.asDict()) for row in found]


_KINDS = (
    ("unexplained", "state = 'unexplained'", "ended without a beginning"),
    ("doubled", "doubled", "accepted or ended more often than may be"),
    ("out_of_order", "out_of_order", "an event where it may not be"),
)


def _named(
    spark: SparkSession, tables: LakeTables, open_rows: DataFrame, balances: Sequence[Balance]
) -> Iterator[Finding]:
    """What the journal itself contradicts: among the open, and on days whose balance says so."""
    bad = "unexplained + doubled + out_of_order > 0"
    days = [
        str(row.date)
        for row in tables["balances"].read(spark).where(bad).select("date").distinct().collect()
    ]
    judged = open_rows.withColumn("again", open_rows["doubled"])
    if days:
        messages = tables["messages"]
        ended = messages.frame(spark, messages.files({"date": days}))
        ended = _judged(ended, tables["messages_open"].read(spark), tables["sequences"].read(spark))
        columns = [name for name in judged.columns if name in ended.columns]
        judged = judged.select(*columns).unionByName(ended.select(*columns))
    for kind, condition, why in _KINDS:
        rows = judged.where(condition).orderBy("module", "subject").limit(NAMED_MAX).collect()
        for row in rows:
            told = f"{why}; last event {row.last_event}"
            yield Finding(
                kind, row.module, row.subject, row.account, row.partition, row.key or "", told
            )


def _numbers(tables: LakeTables, sequences: DataFrame) -> Iterator[tuple[Finding, int]]:
    """Gaps in the journal's running numbers, and numbers given out twice, with how many."""
    rows = sorted(sequences.collect(), key=lambda row: (row.partition, row.first_sequence))
    for row in rows:
        twice = row.events - (row.last_sequence - row.first_sequence + 1)
        if twice:
            yield (
                Finding(
                    "rewound", "journal", f"{row.first_sequence}-{row.last_sequence}",
                    partition=row.partition,
                    why=f"{twice} numbers were given out twice: Redis lost what it had written",
                ),
                twice,
            )  # fmt: skip
    aside = tables.lake.rows("rejects")
    why = f"; {aside} entries are in rejects" if aside else ""
    for one, other in pairwise(rows):
        if one.partition != other.partition:
            continue
        low, high = one.last_sequence + 1, other.first_sequence - 1
        yield (
            Finding(
                "gap", "journal", f"{low}-{high}", partition=one.partition,
                why=f"{high - low + 1} events are missing between two others{why}",
            ),
            high - low + 1,
        )  # fmt: skip


def _finding(kind: str, each: Open) -> Finding:
    where = "in Redis or its database" if each.archived else "in Redis"
    return Finding(
        kind, each.module, each.subject, each.account, each.partition, each.key,
        f"accepted, has not ended, and is not {where}",
    )  # fmt: skip


def _file(spark: SparkSession, tables: LakeTables, found: Audit) -> None:
    """Windows that changed since they were last filed, and what was found."""
    before = {_window(each): _counts(each) for each in _filed(tables.lake)}
    changed = [each for each in found.balances if before.get(_window(each)) != _counts(each)]
    gone = before.keys() - {_window(each) for each in found.balances}
    zeros = [0] * len(_COUNTS)
    changed += [Balance(found.audited_ms, *window, *zeros) for window in sorted(gone)]
    rows = [tuple(getattr(each, name) for name in AUDIT.names) for each in changed]
    given: dict[str, Any] = {"writer": "audit", "batch": found.audited_ms}
    audit = tables["audit"]
    audit.write(spark.createDataFrame(rows, audit.schema).coalesce(1), **given)
    findings = tables["findings"]
    figures = {"events": found.events, "rejects": found.rejects, "wrong": found.wrong}
    named = [{**msgspec.structs.asdict(each), **figures} for each in found.findings]
    named = [{"audited_ms": found.audited_ms, **each} for each in named or [figures]]
    lines = [tuple(each.get(name) for name in FINDINGS.names) for each in named]
    findings.write(spark.createDataFrame(lines, findings.schema).coalesce(1), **given)


def _window(each: Balance) -> tuple[int, str, str]:
    return each.start_s, each.module, each.account


def _counts(each: Balance) -> list[int]:
    return [getattr(each, name) for name in _COUNTS]


# Without Spark


def last_audit(lake: Lake) -> Audit | None:
    """What the newest run found; None when there was none."""
    found = lake.open("findings")
    if found is None:
        return None
    rows = found.to_pyarrow_table().to_pylist()
    newest = max(row["audited_ms"] for row in rows)
    last = [row for row in rows if row["audited_ms"] == newest]
    names = Finding.__struct_fields__
    findings = [Finding(**{name: row[name] for name in names}) for row in last if row["kind"]]
    first = last[0]
    return Audit(newest, first["events"], first["rejects"], first["wrong"], _filed(lake), findings)


def _filed(lake: Lake) -> list[Balance]:
    """Of each window what was filed last."""
    found = lake.open("audit")
    if found is None:
        return []
    windows: dict[tuple[int, str, str], Balance] = {}
    for row in sorted(found.to_pyarrow_table().to_pylist(), key=lambda row: row["audited_ms"]):
        each = Balance(**row)
        windows[_window(each)] = each
    return [each for _, each in sorted(windows.items()) if any(_counts(each))]
