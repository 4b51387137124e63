"""Roles as processes: ready, killed, paused, ended, and nothing left of them."""

from __future__ import annotations

import gc
import signal
from pathlib import Path

import pytest

from tests.kit.eventually import wait_until
from tests.kit.proxy import FaultProxy
from tests.kit.roles import RoleFailed, RoleProcess
from tests.kit.server import ServerProcess
from tests.kit_tests.test_server import is_running

# SIGTERM is blocked and waited for: a handler that sets an Event which the main thread waits on
# can find the Event's lock held by that same thread.
READY = """
import json, os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("starting", flush=True)
print(json.dumps({"role": "relay", "ready": True, "ports": {"http": 1, "ws": 2}}), flush=True)
print(json.dumps({"env": {k: v for k, v in os.environ.items() if k.startswith("ANGARIUM_")}}))
signal.sigwait([signal.SIGTERM])
print("bye", flush=True)
"""
STUBBORN = READY.replace("signal.sigwait([signal.SIGTERM])", "signal.pause()")


def test_a_role_is_ready_with_its_ports_and_ends_by_itself() -> None:
    with RoleProcess(["-c", READY]) as role:
        assert role.ports == {"http": 1, "ws": 2}
        assert role.readiness()[0]["role"] == "relay"
        assert role.terminate(5) == 0
        assert role.lines()[0] == "starting"
        assert role.lines()[-1] == "bye"


def test_the_environment_holds_only_what_the_test_gave(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ANGARIUM_REDIS_URL", "redis://of-the-parent")
    with RoleProcess(["-c", READY], {"ANGARIUM_PREFIX": "x:"}) as role:
        line = role.wait_line(lambda line: "env" in line)
        assert "of-the-parent" not in line
        assert '"ANGARIUM_PREFIX": "x:"' in line
        assert f'"ANGARIUM_HOME": "{role.home}"' in line
        scratch = role.home.parent
    assert not scratch.exists()
    with RoleProcess(["-c", READY], {"ANGARIUM_HOME": str(tmp_path)}) as role:
        assert role.home == tmp_path
    assert tmp_path.exists()


def test_kill_9_ends_it_at_once() -> None:
    with RoleProcess(["-c", READY]) as role:
        role.kill()
        assert role.returncode == -signal.SIGKILL
        assert not role.alive


def test_a_paused_role_does_nothing_until_it_is_resumed() -> None:
    with RoleProcess(["-c", READY]) as role:
        role.pause()
        with pytest.raises(RoleFailed, match="still running"):
            role.terminate(0.2)
        role.resume()
        assert role.wait(5) == 0


def test_a_role_that_ignores_sigterm_fails_the_test_and_is_still_cleaned_up() -> None:
    with RoleProcess(["-c", STUBBORN]) as role:
        pid = role.pid
        with pytest.raises(RoleFailed, match=r"still running after 0\.2 s"):
            role.terminate(0.2)
    assert not is_running(pid)


def test_a_role_that_dies_at_the_start_shows_its_last_output() -> None:
    program = "import sys; print('no such setting: x', file=sys.stderr); sys.exit(2)"
    with pytest.raises(RoleFailed, match=r"(?s)ended with 2.*stderr ends:\nno such setting: x"):
        RoleProcess(["-c", program]).__enter__()


def test_a_role_that_is_never_ready_is_given_up_at_the_deadline() -> None:
    program = "import threading; print('{\"ready\": false}'); threading.Event().wait()"
    with pytest.raises(RoleFailed, match=r"not ready within 0\.5 s"):
        RoleProcess(["-c", program], deadline_s=0.5).__enter__()


def test_two_roles_in_one_process_are_two_lines() -> None:
    program = (
        'print(\'{"role":"a","ready":true,"ports":{"x":1}}\')\n'
        'print(\'{"role":"b","ready":true,"ports":{"y":2}}\')\n'
    )
    with RoleProcess(["-c", program], ready_lines=2) as role:
        assert role.wait() == 0
        assert role.ports == {"x": 1, "y": 2}


def test_output_is_bounded_and_never_blocks_the_role() -> None:
    program = (
        "import sys\n"
        "for n in range(60_000): print(n)\n"
        "sys.stderr.write('x' * 1_000_000)\n"
        "print('done')\n"
    )
    with RoleProcess(["-c", program], ready_lines=0) as role:
        assert role.wait() == 0
        assert role.lines()[-1] == "done"
        assert len(role.lines()) == 20_000
        assert sum(map(len, role.stderr())) <= 1_000_000
        assert max(map(len, role.stderr())) <= 65_536


def test_children_of_the_role_go_with_it() -> None:
    program = (
        "import subprocess, sys, threading\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "print(child.pid, flush=True)\n"
        "threading.Event().wait()\n"
    )
    with RoleProcess(["-c", program], ready_lines=0) as role:
        child = int(role.wait_line(str.isdigit))
        role.kill()
        assert is_running(child)
    wait_until(lambda: not is_running(child))


def test_modules_of_the_repository_can_be_run(tmp_path: Path) -> None:
    arguments = ["-m", "tests.kit.history", str(tmp_path / "missing")]
    with RoleProcess(arguments, ready_lines=0) as role:
        assert role.wait() == 2
        assert "missing" in role.stderr()[0]


async def test_an_async_start_leaves_the_loop_free_for_the_role(
    redis_server: ServerProcess,
) -> None:
    program = (
        "import json, os, socket\n"
        "wire = socket.create_connection(('127.0.0.1', int(os.environ['PORT'])))\n"
        "wire.sendall(b'PING\\r\\n')\n"
        "assert wire.recv(7) == b'+PONG\\r\\n'\n"
        "print(json.dumps({'role': 'x', 'ready': True}), flush=True)\n"
    )
    async with (
        FaultProxy("127.0.0.1", redis_server.port) as proxy,
        RoleProcess(["-c", program], {"PORT": str(proxy.port)}, deadline_s=10) as role,
    ):
        assert proxy.connections == 1
        assert role.ports == {}


def test_nothing_of_ours_is_left_open() -> None:
    gc.collect()  # what earlier tests left to the collector must not be counted
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with RoleProcess(["-c", READY]):
            pass
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
