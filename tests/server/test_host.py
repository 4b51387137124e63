"""The host: order of services, signals, deadlines, and addresses that can't be bound."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from angarium.runtime.errors import AngariumError, SettingInvalid
from angarium.runtime.service import Service
from angarium.runtime.sockets import listen
from angarium.server.host import Host
from tests.kit.eventually import wait_until
from tests.kit.leash import LeashedProcess
from tests.kit.roles import ROOT, RoleProcess
from tests.server.hosted_process import LoggedService

SETTING = "ANGARIUM_TEST__PORT"


def hosted(*services: str, ready_lines: int | None = None) -> RoleProcess:
    count = len(services) if ready_lines is None else ready_lines
    return RoleProcess(["-m", "tests.server.hosted_process", *services], ready_lines=count)


def printed_lines(role: RoleProcess) -> list[str]:
    return [line for line in role.lines() if not line.startswith("{")]


def test_services_start_in_order_and_each_prints_its_readiness_line() -> None:
    with hosted("a", "bb") as role:
        role.wait_line(lambda line: line == "all")
        lines = role.lines()
        assert lines[0] == "start a"
        assert lines[1] == '{"role":"a","ready":true,"ports":{"a-port":1001}}'
        assert lines[2] == "start bb"
        assert json.loads(lines[3]) == {"role": "bb", "ready": True, "ports": {"bb-port": 1002}}
        assert lines[4:] == ["all"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_quiets_all_then_stops_them_in_reverse(number: signal.Signals) -> None:
    with hosted("a", "b") as role:
        role.wait_line(lambda line: line == "all")
        role.send(number)
        assert role.wait() == 0
        after = printed_lines(role)[3:]
        assert sorted(after[:2]) == ["quiet a", "quiet b"]
        assert after[2:] == ["stop b", "close b", "stop a", "close a"]
        assert all(json.loads(line)["event"] for line in role.stderr())


def test_loaded_objects_are_excluded_from_garbage_collection() -> None:
    with hosted("a:collector") as role:
        role.wait_line(lambda line: line == "all")
        assert role.terminate() == 0
        assert "True True a" in printed_lines(role)


def test_a_stop_that_takes_too_long_is_cut_and_leaves_time_for_the_others() -> None:
    with hosted("a", "b:slow-stop") as role:
        assert role.terminate() == 0
        assert printed_lines(role)[-3:] == ["close b", "stop a", "close a"]


def test_a_second_signal_stops_at_once_with_the_signals_exit_code() -> None:
    # Two that never end: the deadline alone would let the second one be asked to stop, too.
    with hosted("a:slow-stop", "b:slow-stop") as role:
        role.send(signal.SIGTERM)
        role.wait_line(lambda line: line == "stop b")
        role.send(signal.SIGTERM)
        assert role.wait() == 128 + signal.SIGTERM
        assert "close a" in printed_lines(role)
        assert "close b" in printed_lines(role)
        assert "stop a" not in printed_lines(role)


def test_a_signal_during_the_start_stops_the_started_services() -> None:
    with hosted("a", "b:slow-start", ready_lines=1) as role:
        role.wait_line(lambda line: line == "start b")
        assert role.terminate() == 0
        assert "all" not in printed_lines(role)
        assert printed_lines(role)[2:] == ["close b", "quiet a", "stop a", "close a"]


def test_a_process_whose_loop_is_blocked_ends_itself_at_its_deadline() -> None:
    with hosted("a:blocked-stop") as role:
        assert role.terminate() == 1
        assert "ending the process" in role.stderr()[-1]


def test_a_closed_stdout_does_not_stop_the_process(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    log = tmp_path / "stderr"
    with log.open("wb") as stderr:
        process = LeashedProcess(
            [sys.executable, "-m", "tests.server.hosted_process", "a"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=writing,
            stderr=stderr,
        )
    os.close(writing)
    with contextlib.closing(process):
        wait_until(lambda: "all_ready" in log.read_text())
        process.send(signal.SIGTERM)
        assert process.wait(15) == 0
    assert "BrokenPipe" not in log.read_text()


async def test_a_service_that_fails_to_start_is_named_and_the_started_ones_are_stopped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    services = [LoggedService("a", ""), LoggedService("b", "no-start"), LoggedService("c", "")]
    with pytest.raises(AngariumError, match="role 'b' did not start: ValueError: no luck"):
        await Host(contextlib.nullcontext(services)).run()
    assert all(service.stopped for service in services)
    assert "close a" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_an_error_of_a_setting_passes_the_host_unchanged() -> None:
    class Refused(Service):
        async def on_start(self) -> None:
            raise SettingInvalid(SETTING, "bad", "make it good")

    with pytest.raises(SettingInvalid, match=SETTING):
        await Host(contextlib.nullcontext([Refused("a")])).run()


# Addresses


def test_a_listener_takes_the_port_it_was_given_or_any_free_one() -> None:
    with listen("127.0.0.1", 0, SETTING) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            pass
    with listen("127.0.0.1", port, SETTING) as again:
        assert again.getsockname()[1] == port


def test_a_port_that_is_taken_is_an_error_of_its_setting_with_the_fix() -> None:
    with listen("127.0.0.1", 0, SETTING) as first:
        port = first.getsockname()[1]
        with pytest.raises(SettingInvalid) as caught:
            listen("127.0.0.1", port, SETTING)
    assert caught.value.setting == SETTING
    assert f"port {port} on 127.0.0.1 is taken" in str(caught.value)
    assert "another port" in str(caught.value)


@pytest.mark.parametrize("address", ["192.0.2.1", "no..name"])
def test_an_address_of_another_machine_is_an_error_of_the_hosts_setting(address: str) -> None:
    with pytest.raises(SettingInvalid) as caught:
        listen(address, 0, SETTING, host_setting="ANGARIUM_TEST__HOST")
    assert caught.value.setting == "ANGARIUM_TEST__HOST"
    assert address in str(caught.value)


def test_a_port_that_needs_privileges_is_an_error_of_its_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Root may bind any port, and tests may run as root: the refusal itself is made up.
    def refuse(_: socket.socket, address: Sequence[object]) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(SettingInvalid, match=r"port 80 on 127\.0\.0\.1 needs privileges"):
        listen("127.0.0.1", 80, SETTING)
