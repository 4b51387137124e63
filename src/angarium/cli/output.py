"""Runs commands and prints results: JSON, a table on a terminal, columns into a pipe."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Sequence
from typing import Annotated, Any, TypeVar

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result]) -> Result:
    import uvloop

    return uvloop.run(work)


def print_json(value: object) -> None:
    import msgspec

    print(msgspec.json.encode(value, enc_hook=str).decode(), flush=True)


def print_line(text: str) -> None:
    """Ids, names and reasons come from others: their control characters are shown, not sent."""
    print(_escaped(text), flush=True)


def print_error(text: str) -> None:
    print(_escaped(text), file=sys.stderr, flush=True)


def _escaped(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """`titles` may be empty. A cell may be a rich `Text`, which has a colour on a terminal."""
    if not sys.stdout.isatty():
        _print_columns([titles, *rows] if any(titles) else rows)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=any(titles), pad_edge=False)
    for number in range(max(map(len, (titles, *rows)), default=0)):
        title = titles[number] if number < len(titles) else ""
        table.add_column(title[:1].upper() + title[1:], overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(_word(cell)) for cell in row))
    Console().print(table)


def _print_columns(rows: Sequence[Sequence[object]]) -> None:
    """One line for each row, however wide."""
    words = [[_word(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*words, strict=True)]
    for row in words:
        pairs = zip(row, widths, strict=True)
        print("  ".join(word.ljust(width) for word, width in pairs).rstrip())


def _word(cell: object) -> str:
    """Ids and payloads are untrusted text: control characters are escaped."""
    return printable("" if cell is None else str(cell))


def printable(text: str) -> str:
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def moment(ms: float) -> str:
    """In UTC, as everywhere in the journal and the lake."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


# A time that was never set counts from 1970; nothing that is shown is older than ten years.
DURATION_MS_MAX = 10 * 365 * 86_400_000


def duration(ms: float) -> str:
    """As the dashboard writes it. A clock that was set back gives no negative age."""
    if ms > DURATION_MS_MAX:
        return "-"
    if ms < 59_950:
        return f"{max(0.0, ms) / 1000:.1f} s"
    minutes, left = divmod(round(ms / 1000), 60)
    if minutes < 60:
        return f"{minutes} min {left} s"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} days"


def warn(problem: str) -> None:
    print_error(f"angarium: {problem}")
