"""The server process: starts, dies, comes back, leaves nothing."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import redis
from tests.kit.eventually import wait_until
from tests.kit.ports import free_port
from tests.kit.server import ServerFailed, ServerProcess, replica_of

ROOT = Path(__file__).parents[2]


def is_running(pid: int) -> bool:
    """A zombie does not run; who reaps it is not our business."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return False
    return stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_server_answers_and_is_gone_with_its_folder_after_the_block() -> None:
    with ServerProcess() as server:
        folder, pid = server.folder, server.pid
        assert redis.Redis.from_url(server.url).ping() is True
        assert server.client(decode_responses=True).echo("hello") == "hello"
    assert not folder.exists()
    assert not is_running(pid)


def test_a_failing_test_leaves_nothing_behind() -> None:
    server = ServerProcess()

    def failing_test() -> None:
        with server:
            seen.extend((server.folder, server.pid))
            server.pause()
            raise ZeroDivisionError

    seen: list[Any] = []
    with pytest.raises(ZeroDivisionError):
        failing_test()
    folder, pid = seen
    assert not folder.exists()
    assert not is_running(pid)
    assert not server.alive


def test_data_on_an_aof_survives_kill_9_and_restart_on_the_same_port() -> None:
    with ServerProcess(aof=True, fsync="always") as server:
        port, pid = server.port, server.pid
        server.client().set("kept", "1")
        server.kill()
        assert not server.alive
        server.restart()
        assert server.port == port
        assert server.pid != pid
        assert server.client().get("kept") == b"1"


def test_data_without_an_aof_is_lost_by_kill_9() -> None:
    with ServerProcess() as server:
        server.client().set("kept", "1")
        server.kill()
        server.restart()
        assert server.client().get("kept") is None


def test_restart_waits_until_the_data_is_loaded() -> None:
    with ServerProcess(aof=True) as server:
        server.ask("DEBUG", "POPULATE", 20_000, "key", 100)
        server.ask("BGREWRITEAOF")
        server.wait_for("rewrite", lambda info: info["aof_rewrite_in_progress"] == 0)
        server.restart()
        assert server.client().dbsize() == 20_000


def test_a_paused_server_keeps_its_connections_and_answers_nobody() -> None:
    with ServerProcess() as server, socket.create_connection(("127.0.0.1", server.port)) as wire:
        wire.settimeout(0.2)
        with server.paused():
            wire.sendall(b"PING\r\n")
            with pytest.raises(TimeoutError):
                wire.recv(100)
        wire.settimeout(5)
        assert wire.recv(100) == b"+PONG\r\n"


def test_settings_and_password_reach_the_server() -> None:
    config = {"requirepass": "secret", "maxmemory-policy": "allkeys-lru", "maxmemory": "64mb"}
    with ServerProcess(config=config) as server:
        policy = server.client(decode_responses=True).config_get("maxmemory-policy")
        assert policy == {"maxmemory-policy": "allkeys-lru"}
        assert redis.Redis.from_url(server.url).ping() is True
        with socket.create_connection(("127.0.0.1", server.port)) as wire:
            wire.sendall(b"PING\r\n")
            assert wire.recv(100).startswith(b"-NOAUTH")


def test_a_replica_copies_follows_and_can_be_promoted() -> None:
    with ServerProcess() as primary:
        primary.client().set("before", "1")
        with replica_of(primary) as replica:
            assert replica.client().get("before") == b"1"
            primary.client().set("after", "2")
            assert primary.client().wait(1, 5_000) == 1
            assert replica.client().get("after") == b"2"
            with pytest.raises(redis.ReadOnlyError):
                replica.client().set("x", "1")
            primary.kill()
            replica.promote()
            assert replica.client().set("x", "1") is True


def test_a_requested_port_that_is_taken_is_an_error() -> None:
    with ServerProcess() as first, pytest.raises(ServerFailed, match=f"port {first.port}"):
        ServerProcess(port=first.port).__enter__()


def test_a_port_lost_at_the_start_is_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with ServerProcess() as first:
        draws = iter([first.port, free_port()])
        monkeypatch.setattr("tests.kit.server.free_port", lambda with_bus: next(draws))
        with ServerProcess() as second:
            assert second.port != first.port
            assert second.client().info()["process_id"] == second.pid


def test_a_wrong_setting_fails_with_the_server_s_own_words() -> None:
    with pytest.raises(ServerFailed, match="no-such-setting"):
        ServerProcess(config={"no-such-setting": "1"}).__enter__()


def test_kill_9_of_the_test_run_ends_its_servers() -> None:
    program = (
        "import os, signal\n"
        "from tests.kit.server import ServerProcess\n"
        "with ServerProcess() as server:\n"
        "    print(server.pid, server.folder, flush=True)\n"
        "    server.pause()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == -signal.SIGKILL, run.stderr
    pid, folder = run.stdout.split()
    wait_until(lambda: not is_running(int(pid)))
    wait_until(lambda: not Path(folder).exists())


def test_a_server_started_in_a_thread_outlives_the_thread() -> None:

    server = ServerProcess()
    thread = threading.Thread(target=server.__enter__)
    thread.start()
    thread.join()
    try:
        assert server.client().ping() is True
    finally:
        server.close()


def test_starting_is_quick_enough_to_use_one_server_per_test() -> None:
    start = time.monotonic()
    with ServerProcess():
        pass
    assert time.monotonic() - start < 2.0
