"""`angarium serve ROLE…`: run roles in one process until a signal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from angarium.cli.output import warn

if TYPE_CHECKING:
    from angarium.runtime.application import Application
    from angarium.settings import Settings


def _completions(incomplete: str) -> list[str]:
    from angarium.server.app import ROLES

    return [name for name in ROLES if name.startswith(incomplete)]


def serve(
    context: typer.Context,
    roles: Annotated[
        list[str],
        typer.Argument(
            metavar="ROLE...", help="Roles to run, e.g. api.", autocompletion=_completions
        ),
    ],
    application: Annotated[
        str | None, typer.Option("--app", help="The functions to run, as module:app.")
    ] = None,
    groups: Annotated[
        list[str] | None, typer.Option("--group", help="Node group of the role node.")
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start the roles again when a file changes.")
    ] = False,
    with_functions: Annotated[
        bool,
        typer.Option("--with-functions", hidden=True, help="Without roles that lack functions."),
    ] = False,
) -> int:
    """Run roles in this process; each prints one JSON line when it is ready."""
    from angarium.server import app

    names = app.checked(roles)

    from angarium.cli.installation import announced
    from angarium.runtime import log
    from angarium.server import host
    from angarium.settings import load

    given: dict[str, Any] = {} if application is None else {"app": application}
    if groups:
        given["transactions"] = {"node_groups": groups}
    log.configure(level=logging.DEBUG if context.obj.debug else logging.INFO)
    settings = load(**given)
    if reload:
        return _reload(settings)
    functions = app.application_of(settings)
    if with_functions:
        names = tuple(name for name in names if name in app.runnable(functions))
    for problem in _useless(names, settings, functions):
        warn(problem)
    with announced(settings):
        return host.run(app.compose(names, settings, functions))


def _reload(settings: Settings) -> int:
    """Run the same command in a process that is replaced when a file changes."""
    from contextlib import nullcontext

    from angarium.cli.reload import ReloadedRoles, watched_folders
    from angarium.server import host

    arguments = [each for each in sys.argv[1:] if each != "--reload"]
    roles = ReloadedRoles(arguments, watched_folders(settings.app))
    return host.run(nullcontext([roles]))


def _useless(names: Sequence[str], settings: Settings, app: Application) -> Iterator[str]:
    """What starts, and will do nothing."""
    from angarium.dispatch.settings import DispatchSettings
    from angarium.redis.url import parse_redis_url
    from angarium.runtime.sockets import is_loopback

    if "node" in names and not app.handlers("step"):
        what = f"{settings.app} has no @app.step function" if settings.app else "it has no steps"
        yield f"role node will run nothing: {what}; name an application: --app module:app"
    host = settings.group(DispatchSettings).worker_host
    if "worker" not in names or not is_loopback(host) or settings.redis_url == "embedded":
        return
    servers = parse_redis_url(settings.redis_url).addresses
    if not all(is_loopback(each.host) for each in servers):
        yield (
            f"role worker registers as {host}, which dispatchers on other hosts can't reach; set "
            "ANGARIUM_DISPATCH__WORKER_HOST to this host's address, or to 0.0.0.0 to find it"
        )
