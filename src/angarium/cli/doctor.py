"""`angarium doctor`: what is here, what is missing, and the command that mends it.

A table for people, plain lines when piped, a list with `--json`. Exit code 0 when everything that
is required is fine, 1 otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from angarium.cli.components import Component


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list, for programs.")] = False,
) -> int:
    """Say what is missing, and the command that fixes it."""
    from angarium.cli.components import examine

    components = list(examine())
    if as_json:
        import msgspec

        print(msgspec.json.encode(components).decode())
    elif sys.stdout.isatty():
        _print_table(components)
    else:
        _print_lines(components)
    return 0 if all(each.ok for each in components if each.required) else 1


def _print_lines(components: Sequence[Component]) -> None:
    for each in components:
        need = "required" if each.required else "optional"
        fix = f" -> {each.fix}" if each.fix else ""
        print(f"{_state(each):<7} {need:<9} {each.name:<13} {_found(each)}{fix}")


def _print_table(components: Sequence[Component]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("", "Component", "", "Found"):
        table.add_column(heading, overflow="fold")
    for each in components:
        colour = "green" if each.ok else "red" if each.required else "yellow"
        need = Text("required" if each.required else "optional", "dim")
        table.add_row(Text(_state(each), colour), each.name, need, Text(_found(each)))
    console = Console()
    console.print(table)
    for each in components:
        if each.fix is not None:
            # Outside the table, on one line: a command folded into a column can't be copied.
            line = Text.assemble("To fix ", each.name, ": ", (each.fix, "bold"))
            console.print(line, soft_wrap=True)


def _state(component: Component) -> str:
    return "ok" if component.ok else "not ok"


def _found(component: Component) -> str:
    return " · ".join(part for part in (component.version, component.detail) if part)
