"""`angarium route`: who owns a recipient key, which instances there are, spreading keys anew."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from angarium.routing.store import Instance, KeyState, RoutingStore

Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]
T = TypeVar("T")


def route_commands() -> typer.Typer:
    commands = typer.Typer(
        help="Look at recipient keys and instances.", no_args_is_help=True, rich_markup_mode=None
    )
    commands.command()(show)
    commands.command()(instances)
    commands.command()(rebalance)
    return commands


def show(
    recip_key: Annotated[str, typer.Argument(metavar="KEY", help="Recipient key.")],
    as_json: Json = False,
) -> int:
    """Say who owns a recipient key and how much waits for it."""
    found: KeyState = _run(lambda store: store.show(recip_key))
    if as_json:
        _print_json(found)
    else:
        print(f"key       {found.recip_key}")
        print(f"owner     {found.uid or 'nobody yet'}{_heard(found.silent_ms)}")
        print(f"pending   {found.pending}")
        print(f"in list   {found.waiting}")
        print(f"partition {found.partition}")
    return 0


def instances(as_json: Json = False) -> int:
    """List the instances with their keys and when they were last heard of."""
    found: tuple[list[Instance], int] = _run(lambda store: store.instances())
    listed, unowned = found
    if as_json:
        _print_json({"instances": listed, "keys_without_owner": unowned})
        return 0
    if sys.stdout.isatty():
        _print_table(listed)
    else:
        for each in listed:
            state = "live" if each.live else "silent"
            mail = "mail" if each.has_mail else "no-mail"
            print(f"{each.uid} {state} {each.keys} {mail}{_heard(each.silent_ms)}")
    if unowned:
        print(f"{unowned} keys with mail have no owner yet")
    return 0


def rebalance(as_json: Json = False) -> int:
    """Move keys without mail from instances that own many to those that own few."""
    moved: int = _run(lambda store: store.rebalance())
    if as_json:
        _print_json({"moved": moved})
    else:
        print(f"{moved} keys moved")
    return 0


def _run(ask: Callable[[RoutingStore], Awaitable[T]]) -> T:
    import uvloop

    return uvloop.run(_asked(ask))


async def _asked(ask: Callable[[RoutingStore], Awaitable[T]]) -> T:
    from angarium.cli.runtime import opened
    from angarium.routing.listening import rules_of
    from angarium.routing.store import RoutingStore

    async with opened() as runtime:
        settings = runtime.settings
        return await ask(RoutingStore(runtime, rules_of(settings), settings.limits))


def _print_json(value: Any) -> None:
    import msgspec

    print(msgspec.json.encode(value).decode())


def _heard(silent_ms: int | None) -> str:
    return "" if silent_ms is None else f" (heard of {silent_ms / 1000:.1f} s ago)"


def _print_table(found: list[Instance]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("Instance", "State", "Keys", "Mail", "Last heard of"):
        table.add_column(heading, overflow="fold")
    for each in found:
        state = Text("live", "green") if each.live else Text("silent", "yellow")
        mail = "waits" if each.has_mail else ""
        heard = "never" if each.silent_ms is None else f"{each.silent_ms / 1000:.1f} s ago"
        table.add_row(each.uid, state, f"{each.keys:,}", mail, heard)
    Console().print(table)
