"""`angarium up`: run every role in one process, and print its addresses and hints."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from angarium.cli.output import print_error

if TYPE_CHECKING:
    from angarium.runtime.service import Service
    from angarium.settings import Settings


def up(
    context: typer.Context,
    application: Annotated[
        str | None, typer.Argument(metavar="[MODULE:APP]", help="The functions to run.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Only the JSON lines of the roles, no prose.")
    ] = False,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Start the functions again when a file changes."),
    ] = False,
) -> int:
    """Run everything in one process, with an embedded Redis unless another is set."""
    from angarium.cli.installation import announced
    from angarium.runtime import log
    from angarium.server import app, host
    from angarium.settings import load

    # On a terminal only warnings follow the address and the hints, so that they stay visible.
    level = logging.WARNING if sys.stderr.isatty() else logging.INFO
    log.configure(level=logging.DEBUG if context.obj.debug else level)
    settings = load() if application is None else load(app=application)
    functions = app.application_of(settings)
    names = app.runnable(functions)
    if not as_json:
        left_out = [name for name in app.ROLES if name not in names]
        if left_out:
            hint = "" if settings.app else " (give an application: angarium up module:app)"
            _say([f"Left out, there are no functions for: {', '.join(left_out)}{hint}"])
        _say([f"Starting {', '.join(names)} on {_redis(settings)} …"])

    def print_summary(services: Sequence[Service]) -> None:
        if not as_json:
            _say(summary(settings, services))

    if not reload:
        composition = app.compose(names, settings, functions)
    else:
        from angarium.cli.reload import ReloadedRoles, beside, watched_folders

        folders, roles = watched_folders(settings.app), app.reloadable()
        rest = [name for name in names if name not in roles]
        command = ["serve", *roles, "--app", settings.app or "", "--with-functions"]
        reloaded = ReloadedRoles(command, folders)
        composition = beside(app.compose(rest, settings, functions), reloaded)
    with announced(settings):
        return host.run(composition, on_ready=print_summary)


def summary(settings: Settings, services: Sequence[Service]) -> list[str]:
    from angarium import __version__

    url = _http_url(settings, services)
    ports = [
        f"{service.name} {port}"
        for service in services
        for port in service.ports.values()
        if service.name != "api"
    ]
    command = _command()
    return [
        "",
        f"Angarium {__version__} is up: {', '.join(service.name for service in services)}.",
        f"  dashboard  {url}/",
        f"  API        {url}/openapi.json   metrics {url}/metrics",
        f"  ports      {', '.join(ports) or 'none besides the API'}",
        f"  Redis      {_redis(settings)}",
        f"  data       {settings.home.absolute()}",
        *_path_hint(command),
        f"Try:  {command} demo       a support chat through all modules, with four kills",
        f"      {command} publish '{{\"hello\": 1}}'",
        f"      {command} find ID    the state and the history of any id",
        "Stop it with Ctrl-C.",
        "",
    ]


def _http_url(settings: Settings, services: Sequence[Service]) -> str:
    port = next(s.ports["http"] for s in services if "http" in s.ports)
    host = settings.http.host
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _redis(settings: Settings) -> str:
    from angarium.settings import redacted

    if settings.redis_url == "embedded":
        return f"embedded server in {settings.home / 'redis'}"
    return redacted(settings.redis_url)


def _command() -> str:
    """The command to type: the bare name only if PATH has it."""
    return "angarium" if shutil.which("angarium") else os.path.relpath(sys.argv[0])


def _path_hint(command: str) -> list[str]:
    """The pages write `angarium`, which an environment's folder has and PATH has not."""
    if command == "angarium":
        return []
    folder = os.path.dirname(os.path.abspath(sys.argv[0]))  # noqa: PTH100, PTH120
    return [f'So that `angarium` works as the pages write it:  export PATH="{folder}:$PATH"']


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        print_error(line)
