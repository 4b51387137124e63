"""`angarium journal …`: the size and the readers of each partition's journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from angarium.cli.output import Json, print_json, print_line, print_table, run

if TYPE_CHECKING:
    from angarium.runtime.journal import JournalStatus


def journal_commands() -> typer.Typer:
    commands = typer.Typer(
        help="Look at the journal and its readers.", no_args_is_help=True, rich_markup_mode=None
    )
    commands.command()(show)
    commands.command()(forget)
    return commands


def show(
    as_json: Json = False,
) -> int:
    """Print the entries, dropped events and readers of each partition's journal."""
    partitions = run(_look())
    if as_json:
        print_json(partitions)
        return 0
    rows = [_row(number, status) for number, status in enumerate(partitions)]
    print_table(("partition", "entries", "events ever", "dropped", "readers"), rows)
    return 0


def forget(
    reader: Annotated[str, typer.Argument(help="Name of the reader, as `show` prints it.")],
    as_json: Json = False,
) -> int:
    """Remove a reader, so that the journal no longer keeps entries for it."""
    run(_forget(reader))
    if as_json:
        print_json({"forgotten": reader})
    else:
        print_line(f"forgotten: {reader}")
    return 0


async def _look() -> list[JournalStatus]:
    from angarium.cli.runtime import open_runtime
    from angarium.runtime.journal import Journal

    async with open_runtime() as runtime:
        journal = Journal(runtime)
        return [await journal.status(number) for number in range(runtime.settings.partitions)]


async def _forget(reader: str) -> None:
    from angarium.cli.runtime import open_runtime
    from angarium.runtime.errors import NotFound
    from angarium.runtime.journal import Journal

    async with open_runtime() as runtime:
        journal = Journal(runtime)
        partitions = range(runtime.settings.partitions)
        known = {name for number in partitions for name in (await journal.status(number)).readers}
        if reader not in known:
            names = ", ".join(sorted(known)) or "there are none"
            raise NotFound(f"no reader {reader!r} holds the journal; readers: {names}")
        await journal.forget(reader)


def _row(number: int, status: JournalStatus) -> tuple[Any, ...]:
    readers = ", ".join(f"{name} at {at or '-'}" for name, at in sorted(status.readers.items()))
    return number, status.entries, status.events, status.dropped_events, readers or "none"
