"""`angarium pickup`: show or empty a connection's queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from angarium.cli.output import Json, print_json, print_table, run

if TYPE_CHECKING:
    from angarium.pickup.inspection import ConnectionQueue, Inspection, PickupOverview

Tenant = Annotated[str, typer.Option("--tenant", help="Tenant of the connection.")]
T = TypeVar("T")


def pickup_commands() -> typer.Typer:
    commands = typer.Typer(
        help="Look at queues and live sessions.", no_args_is_help=True, rich_markup_mode=None
    )
    commands.command()(show)
    commands.command()(drain)
    return commands


def show(
    connection: Annotated[
        str | None, typer.Argument(metavar="[CONNECTION]", help="Connection id; all without it.")
    ] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> int:
    """Show a connection's queue, or the state of the module."""
    if connection is None:
        overview: PickupOverview = _run(lambda inspection: inspection.overview())
        print_json(overview) if as_json else _print_overview(overview)
        return 0
    found: ConnectionQueue = _run(lambda inspection: inspection.show(tenant, connection))
    if as_json:
        print_json(found)
        return 0
    rows = [
        ("connection", f"{found.connection_id} of {found.tenant}"),
        ("pending", f"{found.pending} ({found.archived} in the database)"),
        ("sending", found.sending),
        ("bytes", found.bytes),
        ("session", f"{found.session} at {found.gateway}" if found.live else "none"),
    ]
    print_table((), rows)
    return 0


def drain(
    connection: Annotated[str, typer.Argument(metavar="CONNECTION", help="Connection id.")],
    recipient: Annotated[
        str, typer.Option("--recipient", help="Only messages of this recipient DID.")
    ] = "",
    tenant: Tenant = "default",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> int:
    """Remove every message of a connection permanently, in Redis and in the database."""
    if not yes:
        whose = f" for {recipient}" if recipient else ""
        typer.confirm(f"Remove all messages of {connection}{whose} permanently?", abort=True)
    removed: int = _run(lambda inspection: inspection.drain(tenant, connection, recipient))
    if as_json:
        print_json({"removed": removed})
    else:
        print(f"{removed} messages removed")
    return 0


def _run(ask: Callable[[Inspection], Awaitable[T]]) -> T:
    return run(_asked(ask))


async def _asked(ask: Callable[[Inspection], Awaitable[T]]) -> T:
    from angarium.cli.runtime import open_runtime
    from angarium.pickup.inspection import inspection

    async with open_runtime() as runtime, inspection(runtime) as module:
        return await ask(module)


def _print_overview(overview: PickupOverview) -> None:
    rows = [
        (each.gateway, each.sessions, "yes" if each.live else "no") for each in overview.gateways
    ]
    print_table(("gateway", "sessions", "live"), rows)
    print(f"{overview.queues} queues with messages in Redis, {overview.archived} archived messages")
    print(f"{overview.moving} moving to the database, {overview.pushes} pushes to send")
