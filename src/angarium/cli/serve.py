"""`angarium serve ROLE…`: run roles in one process until a signal."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import typer


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
    with announced(settings):
        return host.run(app.compose(names, settings))
