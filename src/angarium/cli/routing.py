"""`angarium routing`: owners of recipient keys, instances, dead letters, rebalancing, pruning."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from angarium.cli.dead_letters import DeadLetterCommands
from angarium.cli.output import Json, duration, print_json, print_line, print_table, run

if TYPE_CHECKING:
    from angarium.routing.dead_letters import RoutingDeadLetters
    from angarium.routing.instances import RoutingInstance
    from angarium.routing.service import Pruned, RoutingService
    from angarium.routing.store import KeyState

T = TypeVar("T")


def _group(help_text: str, *, alone: bool = False) -> typer.Typer:
    return typer.Typer(
        help=help_text,
        no_args_is_help=not alone,
        invoke_without_command=alone,
        rich_markup_mode=None,
    )


def routing_commands() -> typer.Typer:
    commands = _group("Look at recipient keys, instances and dead letters.")
    commands.command()(show)
    commands.command()(rebalance)
    commands.command()(prune)
    listed = _group("List and remove instances.", alone=True)
    listed.callback()(instances)
    listed.command("list")(list_instances)
    listed.command("remove")(remove_instance)
    listed.command("prune")(prune)
    commands.add_typer(listed, name="instances")
    inbound = DeadLetterCommands(
        _dead_inbound, "List, show, retry and drop messages that no instance could handle."
    )
    commands.add_typer(inbound.group(), name="dead")
    deliveries = DeadLetterCommands(
        _dead_deliveries, "List, show, retry and drop deliveries that failed too often."
    )
    commands.add_typer(deliveries.group(), name="dead-deliveries")
    return commands


def show(
    recip_key: Annotated[str, typer.Argument(metavar="KEY", help="Recipient key.")],
    as_json: Json = False,
) -> int:
    """Show the owner of a recipient key and its pending messages."""
    found: KeyState = _run(lambda service: service.show(recip_key))
    if as_json:
        print_json(found)
    else:
        silent_ms = found.silent_ms
        heartbeat = "" if silent_ms is None else f" (heartbeat {duration(silent_ms)} ago)"
        rows = [
            ("key", found.recip_key),
            ("owner", f"{found.uid or 'nobody yet'}{heartbeat}"),
            ("pending", found.pending),
            ("in list", found.waiting),
            ("partition", found.partition),
        ]
        print_table((), rows)
    return 0


def instances(context: typer.Context, as_json: Json = False) -> int:
    """List the instances, or remove one."""
    return list_instances(as_json) if context.invoked_subcommand is None else 0


def list_instances(as_json: Json = False) -> int:
    """List the instances with their keys and their last heartbeat."""
    found: tuple[list[RoutingInstance], int] = _run(lambda service: service.instances())
    listed, unowned = found
    if as_json:
        print_json({"instances": listed, "keys_without_owner": unowned})
        return 0
    rows = [
        (
            each.uid,
            "live" if each.live else "retired" if each.retired else "silent",
            each.keys,
            "yes" if each.has_mail else "no",
            "never" if each.silent_ms is None else f"{duration(each.silent_ms)} ago",
        )
        for each in listed
    ]
    print_table(("instance", "state", "keys", "has mail", "last heartbeat"), rows)
    if unowned:
        print_line(f"{unowned} keys with mail have no owner yet")
    return 0


def remove_instance(
    uid: Annotated[str, typer.Argument(metavar="UID", help="From the list.")],
    force: Annotated[bool, typer.Option("--force", help="Also if it is live.")] = False,
    as_json: Json = False,
) -> int:
    """Remove an instance that is gone; its keys get another owner with their next message."""
    _run(lambda service: service.remove_instance(uid, force=force))
    print_json({"removed": uid}) if as_json else print_line(f"{uid} removed")
    return 0


def prune(
    silent_s: Annotated[
        float | None,
        typer.Option("--silent-s", min=0, help="Silence of the instances; else the setting."),
    ] = None,
    idle_keys: Annotated[
        bool, typer.Option("--idle-keys", help="Forget all keys without messages.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Remove instances that are gone, and forget recipient keys that nobody uses."""
    silent_ms = None if silent_s is None else int(silent_s * 1000)
    found: Pruned = _run(lambda service: service.prune(silent_ms, idle_keys=idle_keys))
    if as_json:
        print_json(found)
    else:
        print_line(f"{found.instances} instances removed, {found.keys} keys forgotten")
    return 0


def rebalance(as_json: Json = False) -> int:
    """Move keys without mail from instances that own many to those that own few."""
    moved: int = _run(lambda service: service.rebalance())
    if as_json:
        print_json({"moved": moved})
    else:
        print_line(f"{moved} keys moved")
    return 0


def _run(ask: Callable[[RoutingService], Awaitable[T]]) -> T:
    return run(_asked(ask))


async def _asked(ask: Callable[[RoutingService], Awaitable[T]]) -> T:
    async with _service() as service:
        return await ask(service)


@asynccontextmanager
async def _service() -> AsyncIterator[RoutingService]:
    from angarium.cli.runtime import open_runtime
    from angarium.routing.service import RoutingService

    async with open_runtime() as runtime:
        yield runtime.store(RoutingService)


@asynccontextmanager
async def _dead_inbound() -> AsyncIterator[RoutingDeadLetters]:
    async with _service() as service:
        yield service.dead_inbound


@asynccontextmanager
async def _dead_deliveries() -> AsyncIterator[RoutingDeadLetters]:
    async with _service() as service:
        yield service.dead_outbound
