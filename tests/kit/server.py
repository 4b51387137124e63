"""A real Valkey or Redis process that tests kill, pause and restart.

Each server has its own loopback port and temporary folder and keeps both over `restart`. The server
and its folder are removed when the block ends or the test run dies. Nothing is shared, so parallel
runs do not collide. `client` is redis-py, so that tests do not check our client with itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from redis.backoff import NoBackoff
from redis.retry import Retry

import redis
from angarium.redis.embedded.server import find_server
from tests.kit.eventually import NeverTrue, wait_until
from tests.kit.leash import LeashedProcess
from tests.kit.ports import free_port

START_DEADLINE_S = 20.0
STOP_DEADLINE_S = 10.0
ANSWER_TIMEOUT_S = 10.0
START_ATTEMPTS_MAX = 8

UNREACHABLE = (redis.ConnectionError, redis.TimeoutError)
Fsync = Literal["always", "everysec", "no"]


class ServerFailed(Exception):
    """The server did not start or did not do what was waited for; carries its log's tail."""


class ServerProcess:
    """One server. Use as `with ServerProcess() as server:`."""

    def __init__(
        self,
        *,
        aof: bool = False,
        fsync: Fsync = "everysec",
        config: Mapping[str, str] | None = None,
        port: int | None = None,
        sentinel: bool = False,
    ) -> None:
        self._aof = aof
        self._fsync = fsync
        self._config = dict(config or {})
        self._port_fixed = port
        self._port = port or 0
        self._sentinel = sentinel
        self._folder: Path | None = None
        self._process: LeashedProcess | None = None
        self._clients: list[redis.Redis] = []

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="angarium-server-"))
        try:
            self._start_somewhere()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        password = self._config.get("requirepass")
        return f"redis://{f':{password}@' if password else ''}127.0.0.1:{self._port}/0"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise ServerFailed("not started: use the server as a context manager")
        return self._folder

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    def client(self, *, decode_responses: bool = False) -> Any:
        """A redis-py client, closed with the server; ask for a new one after a restart.

        It does not retry, so that a test sees what happened. Typed Any: its answers are
        unions of sync and async that no test could index.
        """
        client = self._connect(decode_responses=decode_responses)
        self._clients.append(client)
        return client

    def ask(self, *command: str | bytes | int) -> Any:
        """One command on a connection of its own; the answer as it came, decoded."""
        with self._connect(decode_responses=True) as client:
            return client.execute_command(*command)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self._running().send(signal.SIGKILL)
        self._drop()

    def stop(self) -> None:
        """Ask it to shut down and wait; its folder stays, so `restart` brings it back."""
        process = self._running()
        process.send(signal.SIGCONT)
        process.send(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_DEADLINE_S)
        self._drop()

    def restart(self) -> None:
        """Same port, same folder; returns when it answers and has loaded its data."""
        if self.alive:
            self.stop()
        self._drop()
        self._start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nobody answers."""
        self._running().send(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send(signal.SIGCONT)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def promote(self) -> None:
        """Make a replica a primary."""
        self.ask("REPLICAOF", "NO", "ONE")
        self.wait_for("role:master", lambda info: info.get("role") == "master")

    def wait_for(
        self,
        what: str,
        condition: Callable[[Mapping[str, Any]], bool],
        deadline_s: float = START_DEADLINE_S,
    ) -> None:
        """Wait until INFO satisfies the condition."""

        def holds() -> bool:
            if not self.alive:
                raise ServerFailed(self._failure_message(f"the server ended before {what}"))
            return condition(client.info())

        try:
            with self._connect(decode_responses=True) as client:
                # A sentinel that turns a server round throws all its clients out.
                wait_until(holds, deadline_s, ignoring=UNREACHABLE)
        except NeverTrue as error:
            raise ServerFailed(self._failure_message(f"no {what} within {deadline_s} s")) from error

    def log_tail(self, lines_max: int = 20) -> str:
        path = self.folder / "server.log"
        if not path.exists():
            return "(no log)"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines_max:])

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()
        self._drop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _connect(self, *, decode_responses: bool) -> redis.Redis:
        return redis.Redis(
            host="127.0.0.1",
            port=self._port,
            password=self._config.get("requirepass"),
            decode_responses=decode_responses,
            socket_timeout=ANSWER_TIMEOUT_S,
            socket_connect_timeout=ANSWER_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )

    # Starting

    def _start_somewhere(self) -> None:
        """Another process may take the port between our look and the server's bind."""
        for attempt in range(START_ATTEMPTS_MAX):
            self._port = self._port_fixed or free_port(with_bus=self._has_bus)
            self._write_config()
            try:
                self._start()
                return
            except ServerFailed:
                self._drop()
                last = attempt == START_ATTEMPTS_MAX - 1
                if last or self._port_fixed or not self._lost_port():
                    raise

    def _start(self) -> None:
        flags = ["--sentinel"] if self._sentinel else []
        # The start-up line of a server that can't read its configuration goes to stdout.
        with (self.folder / "server.log").open("ab") as log:
            self._process = LeashedProcess(
                [str(find_server().path), str(self.folder / "server.conf"), *flags],
                env=_environment(),
                cwd=self.folder,
                stdout=log,
                stderr=log,
                scratch=self.folder,
            )
        try:
            self._wait_ready()
        except BaseException:
            self._drop()
            raise

    def _wait_ready(self) -> None:
        client = self._connect(decode_responses=True)

        def answers() -> bool:
            if not self.alive:
                raise ServerFailed(self._failure_message("the server ended while starting"))
            info = client.info()
            # The pid tells our server from a stranger who has the same port.
            ours = info["process_id"] == self.pid
            return ours and not info.get("loading") and bool(client.ping())

        try:
            wait_until(answers, START_DEADLINE_S, ignoring=UNREACHABLE)
        except NeverTrue as error:
            raise ServerFailed(self._failure_message("the server is not ready")) from error
        finally:
            client.close()

    def _write_config(self) -> None:
        place = {"bind": "127.0.0.1", "port": str(self._port), "dir": str(self.folder)}
        storage = {
            "save": '""',
            "appendonly": "yes" if self._aof else "no",
            "appendfsync": self._fsync,
            "enable-debug-command": "local",
            # Replicas start to copy at once; the default waits 5 s for others to join.
            "repl-diskless-sync-delay": "0",
        }
        lines = place | ({} if self._sentinel else storage) | self._config
        text = "".join(f"{name} {value or chr(34) * 2}\n" for name, value in lines.items())
        (self.folder / "server.conf").write_text(text)

    @property
    def _has_bus(self) -> bool:
        return self._config.get("cluster-enabled") == "yes"

    def _lost_port(self) -> bool:
        return "already in use" in self.log_tail().lower()

    def _running(self) -> LeashedProcess:
        if self._process is None:
            raise ServerFailed("the server is not running")
        return self._process

    def _drop(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def _failure_message(self, problem: str) -> str:
        return f"{problem} (port {self._port}); its log ends:\n{self.log_tail()}"


def _environment() -> dict[str, str] | None:
    """`SERVER_PRELOAD=libjemalloc.so.2` gives the servers another allocator than libc's."""
    preload = os.environ.get("SERVER_PRELOAD")
    return {**os.environ, "LD_PRELOAD": preload} if preload else None


@contextlib.contextmanager
def replica_of(
    primary: ServerProcess, *, aof: bool = False, config: Mapping[str, str] | None = None
) -> Iterator[ServerProcess]:
    """A second server that has copied the first and follows it."""
    following = {"replicaof": f"127.0.0.1 {primary.port}", **(config or {})}
    with ServerProcess(aof=aof, config=following) as replica:
        replica.wait_for("link to its primary", lambda i: i.get("master_link_status") == "up")
        yield replica
