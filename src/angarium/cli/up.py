"""`angarium up`: every role of this version in one process, and what to do with it."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

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
) -> int:
    """Run everything in one process, with an embedded Redis unless another is set."""
    from angarium.runtime import log
    from angarium.server import app, host
    from angarium.settings import load

    # At a terminal the address and the hints stay in sight: only what needs an eye comes after.
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

    def tell(services: Sequence[Service]) -> None:
        if not as_json:
            _say(summary(settings, services))

    return host.run(app.compose(names, settings, functions), on_ready=tell)


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
        f"Try:  {command} demo       the whole story, with four processes killed on the way",
        f"      {command} publish --durable '{{\"hello\": 1}}' --json",
        f"      {command} find ID    where any id is, and its history",
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
    """Ourselves, as the reader can type it: the name alone only where PATH leads to it."""
    return "angarium" if shutil.which("angarium") else os.path.relpath(sys.argv[0])


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)
