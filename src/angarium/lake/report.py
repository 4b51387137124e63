"""One HTML file about what happened: it needs nothing else, and can be sent to anybody.

Made of the gold tables, which Spark has filled; draws with `plots.py`. Times are those of the
modules' transitions, in UTC. Reads only, and asks nobody but the lake.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from angarium.lake.audit import Audit, last_audit
from angarium.lake.catalogue import CATALOGUE, ENDS
from angarium.lake.plots import Span, clock, line_chart, row_bars, stacked_bars
from angarium.lake.query import connect, run
from angarium.lake.tables import Lake

if TYPE_CHECKING:
    import duckdb

TABLES = ("stats_fine", "stats_coarse", "latency", "busiest")
POINTS_AIM = 90
ROWS_MAX = 10
STEPS_MS = (
    5_000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000, 3_600_000, 21_600_000,
    86_400_000,
)  # fmt: skip
NOTHING_ACCEPTED = (
    '<p class="verdict none">No message, reply or transaction was accepted in this time: there is '
    "nothing to balance, and no latency to plot. Send one, run "
    "<code>angarium lake run --once</code> and write the report again.</p>"
)
_RETRIES = sorted({each.name for each in CATALOGUE.values() if each.retry})


@dataclass(frozen=True)
class Section:
    title: str
    about: str
    body: str
    wide: bool = False


def report(lake: Lake, *, title: str = "Angarium") -> str:
    """The report on a lake as one HTML page: the audit's balance, key numbers, and charts."""
    lake.need("events")
    with connect(lake, TABLES) as connection:
        first, last = run(
            connection, "select min(start_s) * 1000, max(start_s + 5) * 1000 from stats_fine"
        ).rows[0]
        step_ms = step_of(first or 0, last or 0)
        # Whole steps, so that the first bar and the last are not cut.
        span = (first or 0) // step_ms * step_ms, ((last or 0) // step_ms + 1) * step_ms
        audit = last_audit(lake)
        messages = lake.rows("messages") + lake.rows("messages_open")
        sections = [
            _throughput(connection, span, step_ms),
            _latency(connection, span),
            _retries(connection, span, step_ms),
            _conversations(connection),
            _keys(connection),
            _webhooks(connection),
        ]
        figures = _figures(connection, lake, audit)
        if not messages:
            sections = [_names(connection)]
    balance = _balance(audit) if messages else NOTHING_ACCEPTED
    period = f"{clock(first)} – {clock(last)} UTC" if first else "no events"
    return _page(title, period, figures, balance, sections)


def step_of(first_ms: int, last_ms: int) -> int:
    """The width of a time step that gives about as many points as fit."""
    wanted = (last_ms - first_ms) / POINTS_AIM
    return next((step for step in STEPS_MS if step >= wanted), STEPS_MS[-1])


# The sections


def _throughput(connection: duckdb.DuckDBPyConnection, span: Span, step_ms: int) -> Section:
    ends = ", ".join(f"('{module}', '{event}')" for module, event in ENDS)
    rows = run(
        connection,
        "select module, (start_s * 1000 // ?) * ? as at, sum(count) * 1000.0 / ? from stats_fine "
        f"where (module, event) in ({ends}) group by 1, 2 order by 1, 2",
        [step_ms, step_ms, step_ms],
    ).rows
    about = (
        f"Messages, replies and transactions that ended, per second, by module ({_step(step_ms)})"
    )
    return Section(
        "Throughput", about, line_chart(_filled(rows, step_ms), about, _number, span), True
    )


def _latency(connection: duckdb.DuckDBPyConnection, span: Span) -> Section:
    rows = run(
        connection,
        "select start_s * 1000, max(p50_ms), max(p95_ms), max(p99_ms) from latency "
        "where p50_ms is not null group by 1 order by 1",
    ).rows
    series = {
        name: [(float(row[0]), float(max(1, row[index]))) for row in rows]
        for index, name in enumerate(("median", "95 of 100", "99 of 100"), 1)
    }
    about = "From acceptance to the end, by when it ended; so many took at most this long (slowest)"
    drawn = line_chart(series if rows else {}, about, _ms, span, logarithmic=True)
    return Section("Latency", about, drawn, True)


def _retries(connection: duckdb.DuckDBPyConnection, span: Span, step_ms: int) -> Section:
    rows = run(
        connection,
        "select module, (start_s * 1000 // ?) * ? as at, sum(count) from stats_fine "
        f"where event in ({_listed(_RETRIES)}) group by 1, 2 order by 1, 2",
        [step_ms, step_ms],
    ).rows
    series: dict[str, list[tuple[float, float]]] = {}
    for module, at, count in rows:
        series.setdefault(module, []).append((float(at), float(count)))
    about = f"What had to be done again: redelivered, awaited, recovered, … ({_step(step_ms)})"
    return Section("Retries", about, stacked_bars(series, about, _number, span, step_ms), True)


def _conversations(connection: duckdb.DuckDBPyConnection) -> Section:
    rows = run(
        connection,
        "select key, max(max_ms) from busiest where module = 'conversations' "
        f"and account = 'reply' and max_ms is not null group by 1 order by 2 desc, 1 "
        f"limit {ROWS_MAX}",
    ).rows
    about = "Conversations by the longest time that one of their replies took"
    return Section("Slowest conversations", about, row_bars(_floats(rows), about, _ms))


def _keys(connection: duckdb.DuckDBPyConnection) -> Section:
    rows = run(
        connection,
        "select module || ' · ' || key, sum(messages) from busiest "
        f"group by 1 order by 2 desc, 1 limit {ROWS_MAX}",
    ).rows
    about = "Recipient keys, conversations, queues, node groups and channels by messages that ended"
    return Section("Busiest keys", about, row_bars(_floats(rows), about, _number))


def _webhooks(connection: duckdb.DuckDBPyConnection) -> Section:
    """Of an outbound message by address, of a transaction's webhook by pipeline."""
    rows = run(
        connection,
        "select * from (select key, sum(retries + dead) as failed from busiest "
        "where module = 'routing' and account = 'outbound' group by 1 union all "
        "select 'pipeline ' || pipeline, sum(count) from stats_coarse "
        "where event in ('webhook_failed', 'webhook_given_up') group by 1) "
        f"where failed > 0 order by 2 desc, 1 limit {ROWS_MAX}",
    ).rows
    about = "Attempts to deliver to an address that failed"
    drawn = row_bars(_floats(rows), about, _number)
    return Section("Failing webhooks and deliveries", about, drawn, True)


def _names(connection: duckdb.DuckDBPyConnection) -> Section:
    """All that there is to show where nothing was accepted."""
    rows = run(
        connection,
        "select module || ' · ' || event, sum(count) from stats_coarse group by 1 "
        f"order by 2 desc, 1 limit {ROWS_MAX}",
    ).rows
    about = "What the journal has so far, by module and event"
    return Section("Events", about, row_bars(_floats(rows), about, _number), True)


def _figures(
    connection: duckdb.DuckDBPyConnection, lake: Lake, audit: Audit | None
) -> list[tuple[str, str]]:
    ended, delivered = run(
        connection, "select coalesce(sum(ended), 0), coalesce(sum(delivered), 0) from latency"
    ).rows[0]
    (retries,) = run(
        connection,
        f"select coalesce(sum(count), 0) from stats_coarse where event in ({_listed(_RETRIES)})",
    ).rows[0]
    accepted = sum(each.accepted for each in audit.balances) if audit else 0
    return [
        ("events", _number(lake.rows("events"))),
        ("accepted", _number(accepted)),
        ("ended", _number(ended)),
        ("delivered", _number(delivered)),
        ("in flight", _number(lake.rows("messages_open"))),
        ("retries", _number(retries)),
    ]


# The page


def _balance(audit: Audit | None) -> str:
    if audit is None:
        return (
            '<p class="verdict none">Not audited yet: <code>angarium lake audit --now</code> draws '
            "up the balance.</p>"
        )
    names = (
        "accepted", "delivered", "expired", "cancelled", "dead", "failed", "in_flight",
        "unexplained", "doubled", "out_of_order",
    )  # fmt: skip
    sums: dict[tuple[str, str], dict[str, int]] = {}
    for each in audit.balances:
        row = sums.setdefault((each.module, each.account), dict.fromkeys(names, 0))
        for name in names:
            row[name] += getattr(each, name)
    wrong, when = audit.wrong, clock(audit.audited_ms)
    verdict = (
        f'<p class="verdict good">Audit of {when} UTC: nothing is unexplained.</p>'
        if wrong == 0
        else f'<p class="verdict bad">Audit of {when} UTC: {wrong} do not fit. '
        "<code>angarium lake audit</code> names them.</p>"
    )
    head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in ("module", "", *names))
    body = "".join(
        f"<tr><td>{escape(module)}</td><td>{escape(account)}</td>"
        + "".join(_cell(name, row[name]) for name in names)
        + "</tr>"
        for (module, account), row in sorted(sums.items())
    )
    return f"{verdict}<div class='scroll'><table><tr>{head}</tr>{body}</table></div>"


def _cell(name: str, value: int) -> str:
    wrong = value and name in ("unexplained", "doubled", "out_of_order")
    kind = ' class="bad"' if wrong else ' class="zero"' if value == 0 else ""
    return f"<td{kind}>{value:,}</td>"


def _page(
    title: str,
    span: str,
    figures: Iterable[tuple[str, str]],
    balance: str,
    sections: Iterable[Section],
) -> str:
    tiles = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for name, value in figures
    )
    cards = "".join(
        f'<section class="{"wide" if each.wide else "half"}"><h2>{escape(each.title)}</h2>'
        f'<p class="about">{escape(each.about)}</p>{each.body}</section>'
        for each in sections
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}: report</title><style>{STYLE}</style></head><body><main>"
        f"<header><h1>{escape(title)}</h1><p>{escape(span)}</p></header>"
        f'<div class="tiles">{tiles}</div><section class="wide"><h2>Balance</h2>{balance}'
        f'</section><div class="cards">{cards}</div></main></body></html>\n'
    )


STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1b2430; --soft: #667080;
  --line: #e3e7ec; --good: #1a7f4b; --bad: #c0392b;
  --c0: #2563c9; --c1: #d9722b; --c2: #23875a; --c3: #8a4fbf; --c4: #b8860b; --c5: #c23b63; }
@media (prefers-color-scheme: dark) { :root { --page: #12161c; --card: #1b212a; --ink: #e8ecf1;
  --soft: #98a3b3; --line: #2c3541; --good: #55c78a; --bad: #ff7b6b;
  --c0: #6ea2ff; --c1: #f2a268; --c2: #5ecb96; --c3: #bb8cf0; --c4: #e0b84c; --c5: #f083a4; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
header { display: flex; align-items: baseline; gap: 16px; flex-wrap: wrap; }
h1 { font-size: 26px; margin: 0; } header p { color: var(--soft); margin: 0; }
h2 { font-size: 17px; margin: 0 0 2px; } .about { color: var(--soft); margin: 0 0 10px;
  font-size: 13px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 12px;
  margin: 20px 0; }
.tile, section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: 12px 16px; } .tile b { display: block; font-size: 22px;
  font-variant-numeric: tabular-nums; } .tile span { color: var(--soft); font-size: 13px; }
section { padding: 16px 18px; margin-bottom: 16px; }
.cards { display: grid; grid-template-columns: repeat(2, 1fr); gap: 0 16px; }
.cards .wide { grid-column: 1 / -1; }
svg { width: 100%; height: auto; display: block; }
.grid { stroke: var(--line); } .tick, .label, .value { fill: var(--soft); font-size: 12px; }
.label { fill: var(--ink); } .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.half .label, .half .value { font-size: 19px; }
.line.c0 { stroke: var(--c0); } .line.c1 { stroke: var(--c1); } .line.c2 { stroke: var(--c2); }
.line.c3 { stroke: var(--c3); } .line.c4 { stroke: var(--c4); } .line.c5 { stroke: var(--c5); }
.dot.c0, .bar.c0 { fill: var(--c0); } .dot.c1, .bar.c1 { fill: var(--c1); }
.dot.c2, .bar.c2 { fill: var(--c2); } .dot.c3, .bar.c3 { fill: var(--c3); }
.dot.c4, .bar.c4 { fill: var(--c4); } .dot.c5, .bar.c5 { fill: var(--c5); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; list-style: none; margin: 8px 0 0;
  padding: 0; font-size: 13px; } .key { display: inline-block; width: 12px; height: 12px;
  border-radius: 3px; margin-right: 6px; vertical-align: -1px; }
.key.c0 { background: var(--c0); } .key.c1 { background: var(--c1); }
.key.c2 { background: var(--c2); } .key.c3 { background: var(--c3); }
.key.c4 { background: var(--c4); } .key.c5 { background: var(--c5); }
.nothing { color: var(--soft); padding: 18px 0; margin: 0; }
.verdict { font-weight: 600; margin: 4px 0 12px; } .good { color: var(--good); }
.bad { color: var(--bad); font-weight: 600; } .none { color: var(--soft); font-weight: 400; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13px;
  font-variant-numeric: tabular-nums; } th, td { padding: 5px 8px; text-align: right;
  border-bottom: 1px solid var(--line); white-space: nowrap; } th { color: var(--soft);
  font-weight: 500; } th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) {
  text-align: left; } .zero { color: var(--soft); } code { font-size: 13px; }
@media (max-width: 800px) { .cards { grid-template-columns: 1fr; }
  .tick { font-size: 17px; } .wide .label, .wide .value { font-size: 19px; } }
@media print { body { background: none; } section { break-inside: avoid; } }
"""


# Numbers and words


def _filled(rows: Sequence[tuple[Any, ...]], step_ms: int) -> dict[str, list[tuple[float, float]]]:
    """Steps in which nothing happened are 0, not a line from one hill to the next."""
    if not rows:
        return {}
    start, end = min(row[1] for row in rows), max(row[1] for row in rows)
    found: dict[str, dict[int, float]] = {}
    for module, at, value in rows:
        found.setdefault(module, {})[at] = float(value)
    return {
        module: [(float(at), values.get(at, 0.0)) for at in range(start, end + step_ms, step_ms)]
        for module, values in found.items()
    }


def _floats(rows: Sequence[tuple[Any, ...]]) -> list[tuple[str, float]]:
    return [(str(name), float(value)) for name, value in rows]


def _listed(words: Iterable[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)


def _step(step_ms: int) -> str:
    return f"steps of {_ms(step_ms)}"


def _number(value: float) -> str:
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ms(value: float) -> str:
    if value < 1_000:
        return f"{value:.0f} ms"
    if value < 120_000:
        return f"{value / 1_000:.3g} s"
    if value < 7_200_000:
        return f"{value / 60_000:.3g} min"
    return f"{value / 3_600_000:.3g} h"
