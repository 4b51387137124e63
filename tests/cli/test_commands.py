"""Groups without a command, lists in a pipe, an unavailable Redis, `doctor`, `up`."""

from __future__ import annotations

import json
import os
import pty
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from angarium.cli import output as cli_output
from angarium.cli.main import main
from angarium.cli.runtime import UNAVAILABLE_TIMEOUT_MS, with_short_timeout
from angarium.settings import load
from tests.cli.test_cli import COMMAND, angarium, components, environment, get
from tests.kit.eventually import wait_until

GROUPS = (
    "transactions",
    "pipeline",
    "dispatch",
    "conversation",
    "routing",
    "pickup",
    "token",
    "lake",
    "journal",
)


@pytest.fixture
def module(redis_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        "ANGARIUM_REDIS_URL": redis_url,
        "ANGARIUM_PREFIX": f"t{secrets.token_hex(4)}:",
        "ANGARIUM_HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_without_a_command_lists_its_commands(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([group]) == 2
    shown = capsys.readouterr()
    assert f"Usage: angarium {group}" in shown.out
    assert "\n\nCommands:\n" in shown.out
    assert shown.err == ""


def test_a_wrong_argument_names_the_help_of_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["transactions", "list", "sleeping"]) == 2
    assert capsys.readouterr().err.endswith("see angarium transactions list --help\n")


def test_a_list_in_a_pipe_has_a_line_for_each_row(
    module: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.json"
    file.write_text(json.dumps({"name": "pay", "steps": [{"type": "charge"}]}))
    assert main(["pipeline", "load", str(file)]) == 0
    assert main(["transactions", "start", "pay", '{"amount": 3}']) == 0
    assert main(["transactions", "start", "pay", "--data", '{"amount": 4}']) == 0
    ids = capsys.readouterr().out.split()[-2:]
    # Without a status: all that have not ended.
    assert main(["transactions", "list"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["id", "pipeline", "owner", "status", "step", "node"]
    assert sorted(row.split()[0] for row in rows) == sorted(ids)
    assert main(["transactions", "show", ids[0]]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["data", '{"amount":3}']
    assert main(["transactions", "start", "pay", "{}", "--data", "{}"]) == 1
    assert "given twice" in capsys.readouterr().err
    assert main(["transactions", "start", "pay", "{"]) == 1
    assert "the data is not JSON" in capsys.readouterr().err


def test_a_durable_message_is_printed_with_its_id_and_found_by_it(
    module: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["publish", "--durable", '{"hello": 1}']) == 0
    said = capsys.readouterr().out
    assert said.startswith("1 message in the durable intake: ")
    assert main(["publish", "--durable", "1", "2"]) == 0
    *ids, line = capsys.readouterr().out.splitlines()
    assert (len(ids), line) == (2, "2 messages in the durable intake")


def test_a_command_does_not_wait_for_redis_as_long_as_a_role(no_settings: object) -> None:
    away = load(redis_url="redis://127.0.0.1:1")
    assert with_short_timeout(away).redis.unavailable_timeout_ms == UNAVAILABLE_TIMEOUT_MS
    assert away.redis.unavailable_timeout_ms > UNAVAILABLE_TIMEOUT_MS
    # Unless somebody said so, or a server has to be started first.
    said = load(redis_url="redis://127.0.0.1:1", redis={"unavailable_timeout_ms": 9_000})
    assert with_short_timeout(said) is said
    own = load(redis_url="embedded")
    assert with_short_timeout(own) is own


def test_doctor_shows_where_traces_go(tmp_path: Path) -> None:
    found = components(angarium(tmp_path, "doctor", "--json"))["traces"]
    assert (found["ok"], found["required"]) == (True, False)
    assert "OTEL_EXPORTER_OTLP_ENDPOINT is not set" in found["detail"]
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    found = components(angarium(tmp_path, "doctor", "--json", **endpoint))["traces"]
    assert found["detail"] == "to http://127.0.0.1:4318"


def test_bench_outside_of_a_checkout_says_where_the_benchmarks_are(tmp_path: Path) -> None:
    env = {name: value for name, value in environment(tmp_path, {}).items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [COMMAND, "bench"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "in the source tree" in ended.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads a terminal as Linux has it")
def test_on_a_terminal_up_keeps_its_address_visible(tmp_path: Path) -> None:
    ports = {
        "ANGARIUM_PICKUP__PORT": "0",
        "ANGARIUM_DISPATCH__ACK_PORT": "0",
        "ANGARIUM_ROUTING__INBOUND": '[["http","127.0.0.1","0"]]',
    }
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [COMMAND, "up"],
        cwd=tmp_path,
        env=environment(tmp_path, ports),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    )
    try:
        os.close(theirs)
        os.set_blocking(ours, False)
        said = bytearray()

        def read() -> str:
            try:
                while chunk := os.read(ours, 65_536):
                    said.extend(chunk)
            except OSError:
                pass  # nothing more for now
            return said.decode()

        wait_until(lambda: "Stop it with" in read(), 60)
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["ports"]["http"]
        # By now the roles have reported their metrics, which elsewhere is a line of the log each.
        wait_until(lambda: len(get(port, "/v1/processes").json()["processes"]) > 3, 60)
        assert '"metrics"' not in read()
        assert "queued_per_s" not in read()  # one of the relay's, however a line is written
        assert read().rstrip().endswith("Stop it with Ctrl-C.")
    finally:
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
        os.close(ours)


def test_every_line_of_a_command_is_escaped_by_the_same_function() -> None:
    """Control characters of foreign data are shown, not sent (F70)."""
    folder = Path(cli_output.__file__).parent
    for path in folder.glob("*.py"):
        if path.name != "output.py":
            found = [
                line
                for line in path.read_text().splitlines()
                if re.search(r"(?<![\w.])print\(", line)
            ]
            assert not found, f"{path.name} prints without print_line: {found}"


def test_control_characters_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    cli_output.print_line("a\x1b]0;x\x07\n\x9b2J b")
    cli_output.warn("no \x1b[2J")
    cli_output.print_table(("title",), [("\x1b[31m",)])
    shown = capsys.readouterr()
    assert shown.out == "a\\x1b]0;x\\x07\n\\x9b2J b\ntitle\n\\x1b[31m\n"
    assert shown.err == "angarium: no \\x1b[2J\n"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-5_000, "0.0 s"),
        (1_234, "1.2 s"),
        (200_000, "3 min 20 s"),
        (7_320_000, "2 h 2 min"),
        (20 * 86_400_000, "20 days"),
        (1_795_000_000_000, "-"),  # since 1970: a time that was never set
    ],
)
def test_no_age_is_absurd(ms: float, text: str) -> None:
    assert cli_output.duration(ms) == text
