"""`angarium doctor`: what is installed, what is missing, and the command that fixes it.

Exit code 0 when everything that is required is fine, 1 otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from angarium.cli.output import Json, print_json, print_line, print_table

if TYPE_CHECKING:
    from angarium.cli.components import Component


def doctor(
    as_json: Json = False,
) -> int:
    """Say what is missing, and the command that fixes it."""
    from angarium.cli.components import examine

    components = list(examine())
    if as_json:
        print_json(components)
    else:
        _print(components)
    return 0 if all(each.ok for each in components if each.required) else 1


def _print(components: Sequence[Component]) -> None:
    from rich.text import Text

    terminal = sys.stdout.isatty()
    rows = []
    for each in components:
        colour = "green" if each.ok else "red" if each.required else "yellow"
        need = "required" if each.required else "optional"
        fix = f" -> {each.fix}" if each.fix and not terminal else ""
        rows.append((Text(_state(each), colour), need, each.name, f"{_found(each)}{fix}"))
    print_table(("", "", "component", "found") if terminal else (), rows)
    for each in components:
        if terminal and each.fix is not None:
            # Below the table, on one line: a command folded into a column can't be copied.
            print_line(f"To fix {each.name}: {each.fix}")


def _state(component: Component) -> str:
    return "ok" if component.ok else "not ok"


def _found(component: Component) -> str:
    return " · ".join(part for part in (component.version, component.detail) if part)
