"""`angarium routing`: owners of recipient keys, instances, rebalancing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from angarium.cli.output import Json, print_json, print_table, run, seconds

if TYPE_CHECKING:
    from angarium.routing.store import KeyState, RoutingInstance, RoutingStore

T = TypeVar("T")


def routing_commands() -> typer.Typer:
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
    """Show the owner of a recipient key and its pending messages."""
    found: KeyState = _run(lambda store: store.show(recip_key))
    if as_json:
        print_json(found)
    else:
        silent_ms = found.silent_ms
        heartbeat = "" if silent_ms is None else f" (heartbeat {seconds(silent_ms)} ago)"
        rows = [
            ("key", found.recip_key),
            ("owner", f"{found.uid or 'nobody yet'}{heartbeat}"),
            ("pending", found.pending),
            ("in list", found.waiting),
            ("partition", found.partition),
        ]
        print_table((), rows)
    return 0


def instances(as_json: Json = False) -> int:
    """List the instances with their keys and their last heartbeat."""
    found: tuple[list[RoutingInstance], int] = _run(lambda store: store.instances())
    listed, unowned = found
    if as_json:
        print_json({"instances": listed, "keys_without_owner": unowned})
        return 0
    rows = [
        (
            each.uid,
            "live" if each.live else "silent",
            each.keys,
            "yes" if each.has_mail else "no",
            "never" if each.silent_ms is None else f"{seconds(each.silent_ms)} ago",
        )
        for each in listed
    ]
    print_table(("instance", "state", "keys", "has mail", "last heartbeat"), rows)
    if unowned:
        print(f"{unowned} keys with mail have no owner yet")
    return 0


def rebalance(as_json: Json = False) -> int:
    """Move keys without mail from instances that own many to those that own few."""
    moved: int = _run(lambda store: store.rebalance())
    if as_json:
        print_json({"moved": moved})
    else:
        print(f"{moved} keys moved")
    return 0


def _run(ask: Callable[[RoutingStore], Awaitable[T]]) -> T:
    return run(_asked(ask))


async def _asked(ask: Callable[[RoutingStore], Awaitable[T]]) -> T:
    from angarium.cli.runtime import open_runtime
    from angarium.routing.role_settings import routing_store

    async with open_runtime() as runtime:
        return await ask(runtime.store(routing_store))
