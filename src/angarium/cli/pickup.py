"""`angarium pickup`: show or empty a connection's queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from angarium.cli.output import Json, print_json, print_line, print_table, run
from angarium.runtime.text import count_of

if TYPE_CHECKING:
    from angarium.pickup.service import ConnectionQueue, PickupOverview, PickupService

Tenant = Annotated[str, typer.Option("--tenant", help="Tenant of the connection.")]
T = TypeVar("T")


def pickup_commands() -> typer.Typer:
    commands = typer.Typer(
        help="Look at queues and live sessions.", no_args_is_help=True, rich_markup_mode=None
    )
    commands.command()(show)
    commands.command()(drain)
    commands.command("adopt-database")(adopt_database)
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
        overview: PickupOverview = _run(lambda pickup: pickup.overview())
        print_json(overview) if as_json else _print_overview(overview)
        return 0
    found: ConnectionQueue = _run(lambda pickup: pickup.show(tenant, connection))
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
    removed: int = _run(lambda pickup: pickup.drain(tenant, connection, recipient))
    if as_json:
        print_json({"removed": removed})
    else:
        print_line(f"{count_of(removed, 'message')} removed")
    return 0


def adopt_database(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> int:
    """Use the configured database in place of the recorded one, which is lost. Stop every gateway
    first. Messages that only the lost database had are given up."""
    if not yes:
        typer.confirm("Give up the messages that only the former database has?", abort=True)
    place: str = _run(lambda pickup: pickup.adopt_database())
    if as_json:
        print_json({"database": place})
    else:
        print_line(f"the database of this installation is {place}")
    return 0


def _run(ask: Callable[[PickupService], Awaitable[T]]) -> T:
    return run(_asked(ask))


async def _asked(ask: Callable[[PickupService], Awaitable[T]]) -> T:
    from angarium.cli.runtime import open_runtime
    from angarium.pickup.service import PickupService

    async with open_runtime() as runtime:
        pickup = PickupService(runtime)
        try:
            return await ask(pickup)
        finally:
            await pickup.close()


def _print_overview(overview: PickupOverview) -> None:
    rows = [
        (each.gateway, each.sessions, "yes" if each.live else "no") for each in overview.gateways
    ]
    print_table(("gateway", "sessions", "live"), rows)
    queues, archived = count_of(overview.queues, "queue"), count_of(overview.archived, "message")
    print_line(f"{queues} with messages in Redis, {archived} in the database")
    print_line(f"{overview.moving} moving to the database, {overview.pushes} pushes to send")
