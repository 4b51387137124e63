"""`angarium routing`: owners of recipient keys, instances, dead letters, rebalancing, pruning."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from angarium.cli.output import Json, print_json, print_table, run, seconds, warn

if TYPE_CHECKING:
    from angarium.routing.dead_letters import DeadMessagePage, RoutingDeadLetters
    from angarium.routing.service import Pruned, RoutingService
    from angarium.routing.store import KeyState, RoutingInstance

T = TypeVar("T")
Outbound = Annotated[bool, typer.Option("--outbound", help="Those of the deliverer.")]
Reason = Annotated[
    str | None, typer.Option("--reason", help="All whose reason begins with this text.")
]
All = Annotated[bool, typer.Option("--all", help="All dead letters.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids from the list.")]


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
    commands.add_typer(listed, name="instances")
    dead = _group("List, show, retry and drop messages that were given up.")
    dead.command("list")(list_dead)
    dead.command("show")(show_dead)
    dead.command("retry")(retry_dead)
    dead.command("drop")(drop_dead)
    commands.add_typer(dead, name="dead")
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


def remove_instance(
    uid: Annotated[str, typer.Argument(metavar="UID", help="From the list.")],
    force: Annotated[bool, typer.Option("--force", help="Also if it is live.")] = False,
    as_json: Json = False,
) -> int:
    """Remove an instance that is gone; its keys get another owner with their next message."""
    _run(lambda service: service.remove_instance(uid, force=force))
    print_json({"removed": uid}) if as_json else print(f"{uid} removed")
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
        print(f"{found.instances} instances removed, {found.keys} keys forgotten")
    return 0


def rebalance(as_json: Json = False) -> int:
    """Move keys without mail from instances that own many to those that own few."""
    moved: int = _run(lambda service: service.rebalance())
    if as_json:
        print_json({"moved": moved})
    else:
        print(f"{moved} keys moved")
    return 0


def list_dead(
    outbound: Outbound = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="At most so many.")] = 50,
    after: Annotated[
        str | None, typer.Option("--after", help="Continue after this cursor of an earlier list.")
    ] = None,
    as_json: Json = False,
) -> int:
    """List dead letters with their reasons, oldest first."""
    page: DeadMessagePage = _run(lambda service: _letters(service, outbound).page(limit, after))
    if as_json:
        print_json(page)
        return 0
    rows = [(each.id, each.recip_key, each.attempts or "", each.reason) for each in page.letters]
    print_table(("message", "key", "attempts", "reason"), rows)
    if page.next is not None:
        warn(f"there are more; continue with --after {page.next}")
    return 0


def show_dead(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="From the list.")],
    outbound: Outbound = False,
) -> int:
    """Show one dead letter with its message, as JSON."""
    print_json(_run(lambda service: _letters(service, outbound).find(message_id)).dead)
    return 0


def retry_dead(
    ids: Ids = None,
    outbound: Outbound = False,
    reason: Reason = None,
    everything: All = False,
    as_json: Json = False,
) -> int:
    """Queue dead messages again, with all their attempts."""

    async def act(service: RoutingService) -> dict[str, int]:
        letters = _letters(service, outbound)
        if not ids:
            return dict(await letters.retry_all(reason))
        return _counts([await letters.retry(each) for each in ids])

    return _act(act, ids, reason, everything, as_json)


def drop_dead(
    ids: Ids = None,
    outbound: Outbound = False,
    reason: Reason = None,
    everything: All = False,
    as_json: Json = False,
) -> int:
    """Remove dead messages for good."""

    async def act(service: RoutingService) -> dict[str, int]:
        letters = _letters(service, outbound)
        if not ids:
            return dict(await letters.drop_all(reason))
        for each in ids:
            await letters.drop(each)
        return {"dropped": len(ids)}

    return _act(act, ids, reason, everything, as_json)


def _act(
    act: Callable[[RoutingService], Awaitable[dict[str, int]]],
    ids: Sequence[str] | None,
    reason: str | None,
    everything: bool,
    as_json: bool,
) -> int:
    from angarium.runtime.errors import InputInvalid

    if sum([bool(ids), reason is not None, everything]) != 1:
        raise InputInvalid("name the messages by their ids, or use --reason, or --all")
    found = _run(act)
    if as_json:
        print_json(found)
    else:
        print(", ".join(f"{count} {status}" for status, count in found.items()) or "none")
    return 0


def _counts(statuses: Sequence[str]) -> dict[str, int]:
    return {each: statuses.count(each) for each in sorted(set(statuses))}


def _letters(service: RoutingService, outbound: bool) -> RoutingDeadLetters:
    return service.dead_outbound if outbound else service.dead_inbound


def _run(ask: Callable[[RoutingService], Awaitable[T]]) -> T:
    return run(_asked(ask))


async def _asked(ask: Callable[[RoutingService], Awaitable[T]]) -> T:
    from angarium.cli.runtime import open_runtime
    from angarium.routing.service import RoutingService

    async with open_runtime() as runtime:
        return await ask(runtime.store(RoutingService))
