"""The audit: everything that was accepted has ended, is where it should be, or is named here.

Reads the lake through DuckDB, so it needs no Java, and asks Redis for each life that the journal
has not seen end. One that is not there may have ended a moment ago, so the journal's newest
entries, and the lake once more, are read before it is called unexplained. Changes nothing but the
table `audit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from angarium.lake.jobs import audit as rules
from angarium.lake.jobs.events import entry_id_of
from angarium.lake.jobs.lifecycles import CATALOGUE, Role
from angarium.lake.presence import Open, Presence
from angarium.lake.query import connect, run
from angarium.lake.schemas import AUDIT
from angarium.lake.tables import Lake
from angarium.runtime.journal import EntryUnreadable, Journal, decode_entry
from angarium.runtime.runtime import Runtime

if TYPE_CHECKING:
    import duckdb

WINDOW_S = 1_000
# So many of a kind are named one by one; beyond that a list helps nobody.
NAMED_MAX = 1_000
TABLES = ("events", "messages", "rejects")
# A life is looked for so often before it counts as gone: things move while we look.
LOOKS = 3
_ENDS = frozenset((each.room, each.event) for each in CATALOGUE if each.role is Role.END)


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that does not fit."""

    kind: str
    room: str
    subject: str
    account: str = ""
    partition: int = 0
    key: str = ""
    why: str = ""


class Balance(msgspec.Struct, frozen=True):
    """One window of one account, as in the table `audit`."""

    audited_ms: int
    start_s: int
    room: str
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


async def audit(runtime: Runtime, lake: Lake, *, window_s: int = WINDOW_S) -> Audit:
    """Draw up the balance, and file it."""
    lake.need("events")
    audited_ms = await _now_ms(runtime)
    with connect(lake, TABLES) as connection:
        connection.execute(f"create table starts as {rules.STARTS.format(events='events')}")
        connection.execute(
            "create table verdicts as "
            + rules.VERDICTS.format(messages="messages", starts="starts")
        )
        missing = await _missing(runtime, lake, _open(connection))
        findings = [_finding("unexplained", each) for each in missing]
        findings += _judged(connection)
        wrong = len(missing) + _wrong(connection)
        for finding, count in _numbers(connection):
            findings.append(finding)
            wrong += count
        balances = _balances(connection, missing, window_s, audited_ms)
        events, rejects = (
            run(connection, f"select count(*) from {name}").rows[0][0]
            for name in ("events", "rejects")
        )
    _file(lake, balances)
    return Audit(audited_ms, events, rejects, wrong, balances, findings[:NAMED_MAX])


async def _now_ms(runtime: Runtime) -> int:
    owned = runtime.clock.now_ms()
    if owned is not None:
        return owned
    seconds, micros = await runtime.redis.call("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


def _open(connection: duckdb.DuckDBPyConnection) -> list[Open]:
    answer = run(
        connection,
        "select partition, room, account, subject, coalesce(key, ''), coalesce(reference, ''), "
        "archived from verdicts where state = 'in_flight'",
    )
    return [Open(*row) for row in answer.rows]


async def _missing(runtime: Runtime, lake: Lake, lives: Sequence[Open]) -> list[Open]:
    presence = Presence(runtime)
    positions = lake.positions("messages", "journal")
    gone: Sequence[Open] = lives
    for _ in range(LOOKS):
        gone = await presence.missing(gone)
        if not gone:
            return []
    # In this order: what left the journal in the meantime went into the lake first.
    ended = await _ended_since(runtime, positions)
    gone = [each for each in gone if (each.room, each.subject) not in ended]
    if gone:
        still = {(o.partition, o.room, o.account, o.subject) for o in _open_now(lake)}
        gone = [e for e in gone if (e.partition, e.room, e.account, e.subject) in still]
    return list(gone)


async def _ended_since(runtime: Runtime, positions: dict[int, int]) -> set[tuple[str, str]]:
    """What the journal has seen end behind what the lake has read."""
    journal = Journal(runtime)
    ended: set[tuple[str, str]] = set()
    for partition, position in positions.items():
        after = entry_id_of(max(position, 0))
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
                    if (entry.module, each.event) in _ENDS
                }
    return ended


def _open_now(lake: Lake) -> list[Open]:
    with connect(lake, TABLES) as connection:
        connection.execute(f"create table starts as {rules.STARTS.format(events='events')}")
        text = rules.VERDICTS.format(messages="messages", starts="starts")
        connection.execute(f"create table verdicts as {text}")
        return _open(connection)


def _judged(connection: duckdb.DuckDBPyConnection) -> Iterable[Finding]:
    """What the journal itself contradicts."""
    kinds = (
        ("unexplained", "state = 'unexplained'", "ended without a beginning"),
        ("doubled", "doubled", "accepted or ended more often than may be"),
        ("out_of_order", "out_of_order", "an event where it may not be"),
    )
    for kind, condition, why in kinds:
        answer = run(
            connection,
            "select room, subject, account, partition, coalesce(key, ''), last_event "
            f"from verdicts where {condition} order by room, subject limit {NAMED_MAX}",
        )
        for room, subject, account, partition, key, last_event in answer.rows:
            told = f"{why}; last event {last_event}"
            yield Finding(kind, room, subject, account, partition, key, told)


def _wrong(connection: duckdb.DuckDBPyConnection) -> int:
    sql = (
        "select coalesce(sum((state = 'unexplained')::int + doubled::int + out_of_order::int), 0) "
        "from verdicts"
    )
    return int(run(connection, sql).rows[0][0])


def _numbers(connection: duckdb.DuckDBPyConnection) -> Iterable[tuple[Finding, int]]:
    """Gaps in the journal's running numbers, and numbers given out twice, with how many."""
    sql = "select partition, min(sequence), max(sequence), count(*) from events group by 1"
    for partition, first, last, count in run(connection, sql).rows:
        if count == last - first + 1:
            continue  # none is missing, or as many are twice: that is looked at below
        here = f"(select * from events where partition = {partition})"
        rejects = run(connection, f"select count(*) from rejects where partition = {partition}")
        aside = rejects.rows[0][0]
        why = f"; {aside} entries of this partition are in rejects" if aside else ""
        for _, low, high, _ in run(connection, rules.GAPS.format(events=here)).rows:
            yield (
                Finding(
                    "gap", "journal", f"{low}-{high}", partition=partition,
                    why=f"{high - low + 1} events are missing between two others{why}",
                ),
                high - low + 1,
            )  # fmt: skip
        for _, number, times in run(connection, rules.REWOUND.format(events=here)).rows:
            yield (
                Finding(
                    "rewound", "journal", str(number), partition=partition,
                    why=f"the number was given out {times} times: Redis lost what it had written",
                ),
                times - 1,
            )  # fmt: skip


def _balances(
    connection: duckdb.DuckDBPyConnection,
    missing: Sequence[Open],
    window_s: int,
    audited_ms: int,
) -> list[Balance]:
    connection.execute(
        "create table missing (partition integer, room varchar, account varchar, subject varchar)"
    )
    if missing:
        rows = [(each.partition, each.room, each.account, each.subject) for each in missing]
        connection.executemany("insert into missing values (?, ?, ?, ?)", rows)
    text = rules.BALANCE.format(
        messages="messages", starts="starts", missing="missing",
        window_s=window_s, audited_ms=audited_ms,
    )  # fmt: skip
    answer = run(connection, f"select * from ({text}) order by start_s, room, account")
    named = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    return [Balance(**{name: _plain(row[name]) for name in AUDIT.names}) for row in named]


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else int(value)


def _finding(kind: str, life: Open) -> Finding:
    where = "in Redis or its database" if life.archived else "in Redis"
    return Finding(
        kind, life.room, life.subject, life.account, life.partition, life.key,
        f"accepted, has not ended, and is not {where}",
    )  # fmt: skip


def _file(lake: Lake, balances: Sequence[Balance]) -> None:
    import pyarrow as pa

    rows = [msgspec.to_builtins(each) for each in balances]
    lake.append("audit", pa.Table.from_pylist(rows, AUDIT.arrow()))


def last_audit(lake: Lake) -> list[Balance]:
    """The balance of the newest run; empty when there was none."""
    if lake.open("audit") is None:
        return []
    with connect(lake, ("audit",)) as connection:
        answer = run(
            connection,
            "select * from audit where audited_ms = (select max(audited_ms) from audit) "
            "order by start_s, room, account",
        )
    return [Balance(**row) for row in answer.as_dicts()]
