"""The process that keeps one home folder's Redis or Valkey server running.

Promises: at most one server per folder; a crashed server comes back on its port; the server
goes when its last user is gone, even if that user was killed. Who is alive is told by flocks,
which the kernel drops with their holder, never by process ids. The file is run by its path in
an isolated interpreter (`python -I -S supervisor.py …`) so that it starts in milliseconds
whatever the package grows into: it may import the standard library only, nothing of Angarium.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import json
import os
import random
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from types import FrameType
from typing import Literal, NamedTuple

Fsync = Literal["everysec", "always"]
State = Literal["starting", "loading", "ready", "failed"]
Reply = str | list["Reply"] | None

HOST = "127.0.0.1"
POLL_S = 0.3  # how soon a lost user or a raised fsync is noticed; three cheap syscalls a pass
STARTING_POLL_S = 0.02  # while a server starts, users wait for the next pass
GRACE_S = 1.0  # without users for this long: a row of short commands shares one server
SILENT_S_MAX = 20.0  # a started server answers at least LOADING by then, on a busy machine too
STOP_S_MAX = 10.0  # from SIGTERM to SIGKILL: time for the last fsync of a slow disk
ORPHAN_S_MAX = 10.0  # for a dead supervisor's server to leave the folder
RESTART_S_BASE, RESTART_S_MAX = 0.1, 5.0  # back-off between restarts of a crashing server
STEADY_S = 10.0  # a server that ran this long starts its next back-off from the base
START_TRIES = 5  # of the first start: the port may be taken just then, or the server killed
EXCHANGE_S_MAX = 1.0  # one command on loopback; a busy server is asked again at the next pass
LOG_BYTES_MAX = 4 * 1024 * 1024  # the log is for the last failure, not an archive
PORTS = range(10_240, 65_536)  # above the well-known services and our own default ports
EXIT_NOT_NEEDED = 3  # 1 and 2 are Python's own
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


class Folder:
    """The names inside `<home>/redis`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = path / "server.json"
        self.orphan = path / "orphan.json"  # a dead supervisor's record, for its successor
        self.log = path / "server.log"
        self.always = path / "fsync.always"  # exists once a user asked for appendfsync always
        self.users_lock = path / "users.lock"  # shared: held by each user
        self.supervisor_lock = path / "supervisor.lock"
        # Inherited by the server, so it is held for as long as any server lives here.
        self.server_lock = path / "server.lock"


@dataclass(frozen=True)
class Record:
    """What users need to know of the server, as kept in server.json."""

    port: int
    password: str
    pid: int | None
    supervisor_pid: int
    flavour: str
    version: str
    fsync: Fsync
    state: State


def read_record(path: Path) -> Record | None:
    try:
        fields = json.loads(path.read_bytes())
        return Record(**{field.name: fields[field.name] for field in dataclasses.fields(Record)})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_record(path: Path, record: Record) -> None:
    """Readers see the old record or the new one, never a part of one."""
    scratch = path.with_name(path.name + ".new")
    scratch.unlink(missing_ok=True)
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(dataclasses.asdict(record), file)
    scratch.replace(path)


def open_private(path: Path, flags: int = 0) -> int:
    """A file only its owner may read; Python opens it close-on-exec."""
    return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600)


def try_lock(fd: int, operation: int) -> bool:
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_same_file(fd: int, path: Path) -> bool:
    """False when somebody deleted or replaced the file we hold a lock on."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def exchange(port: int, password: str, *command: str) -> Reply:
    """AUTH and one command on a connection of its own; errors come back as '-…' strings."""
    with socket.create_connection((HOST, port), timeout=EXCHANGE_S_MAX) as connection:
        replies = connection.makefile("rb")
        connection.sendall(_encode("AUTH", password))
        allowed = _read_reply(replies)
        if allowed != "+OK":
            return allowed
        connection.sendall(_encode(*command))
        return _read_reply(replies)


def _encode(*command: str) -> bytes:
    parts = [part.encode() for part in command]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


def _read_reply(replies: BufferedReader) -> Reply:
    line = replies.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("the server closed the connection")
    text = line[:-2].decode(errors="replace")
    if text[:1] == "$":
        size = int(text[1:])
        return None if size < 0 else replies.read(size + 2)[:-2].decode(errors="surrogateescape")
    if text[:1] == "*":
        return [_read_reply(replies) for _ in range(int(text[1:]))]
    return text


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the server does it: connections left over from a killed server don't count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def choose_port() -> int:
    """A free port that the kernel does not hand to outgoing connections.

    While the server is down, its clients keep connecting to its port. In the ephemeral range
    such an attempt sooner or later gets that same number as its own source port, connects to
    itself and holds the port against the server.
    """
    try:
        lowest, highest = map(
            int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        )
    except (OSError, ValueError):
        lowest, highest = 32_768, 65_535
    candidates = [port for port in PORTS if not lowest <= port <= highest]
    for port in random.sample(candidates, min(64, len(candidates))):
        if port_is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


# Small hashes and sorted sets stay compact. A member of a conversation's list is longer than the
# usual limit of 64 bytes; a sorted set of one such member takes 890 bytes instead of 170.
COMPACT = {
    "hash-max-listpack-entries": "128",
    "hash-max-listpack-value": "256",
    "zset-max-listpack-entries": "128",
    "zset-max-listpack-value": "256",
}


def server_config(directory: Path, record: Record) -> bytes:
    """Goes to the server's stdin: the password is in no command line and no second file."""
    compact = "\n".join(f"{name} {value}" for name, value in COMPACT.items())
    quoted = "".join(
        chr(byte) if re.match(rb"[\w./-]", bytes([byte])) else f"\\x{byte:02x}"
        for byte in os.fsencode(directory)
    )
    return f"""
        bind {HOST}
        port {record.port}
        requirepass {record.password}
        dir "{quoted}"
        appendonly yes
        appendfsync {record.fsync}
        aof-load-truncated yes
        # Plain commands: any later Redis or Valkey found on PATH can read what this one wrote.
        aof-use-rdb-preamble no
        save ""
        maxmemory-policy noeviction
        {compact}
    """.encode()


class Binary(NamedTuple):
    path: str
    flavour: str
    version: str


class ServerFailed(Exception):
    """The server can't be started here; the reason is the last line of the log."""


class Supervisor:
    def __init__(self, folder: Folder, binary: Binary, lock: int) -> None:
        self._folder = folder
        self._binary = binary
        self._lock = lock
        self._users = open_private(folder.users_lock)
        self._server_lock = open_private(folder.server_lock)
        self._process: subprocess.Popen[bytes] | None = None
        self._record = Record(
            port=choose_port(),
            password=secrets.token_hex(32),
            pid=None,
            supervisor_pid=os.getpid(),
            flavour=binary.flavour,
            version=binary.version,
            fsync="everysec",
            state="starting",
        )
        self._answers = False  # the present server, as opposed to the record's state
        self._heard_at = 0.0
        self._starts = 0
        self._crashes = 0
        self._restart_at = 0.0
        self._alone_since: float | None = None
        self._abandoned = False
        self._terminated = False

    def run(self) -> None:
        wakeup = self._listen_to_signals()
        try:
            self._evict_orphan()
            while self.run_once():
                select.select([wakeup], [], [], POLL_S if self._answers else STARTING_POLL_S)
                with contextlib.suppress(BlockingIOError):
                    os.read(wakeup, 4096)
        except ServerFailed as error:
            say(str(error))
            self._record = dataclasses.replace(self._record, state="failed")
        finally:
            self._stop()

    def run_once(self) -> bool:
        """One look at users and server; False when it is time to go."""
        if self._terminated or not is_same_file(self._lock, self._folder.supervisor_lock):
            return False
        if self._look_for_users():
            return False
        if self._process is None:
            if time.monotonic() >= self._restart_at:
                self._start(self._binary.path)
        elif (code := self._process.poll()) is not None:
            self._note_exit(code)
        elif not self._answers:
            self._probe(self._process)
        elif self._record.fsync == "everysec" and self._folder.always.exists():
            self._raise_fsync()
        bound_log(self._folder)
        return True

    def _listen_to_signals(self) -> int:
        """A pipe that turns readable when the server died or we are asked to go."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

        def terminate(number: int, frame: FrameType | None) -> None:
            self._terminated = True

        signal.signal(signal.SIGTERM, terminate)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        return reader

    def _look_for_users(self) -> bool:
        """True once nobody was there for the whole grace.

        The users' lock is then kept to our end, so that a user who arrives while the server
        stops waits until we are gone instead of taking an address that is about to vanish.
        """
        if not try_lock(self._users, fcntl.LOCK_EX):
            self._alone_since = None
            return False
        now = time.monotonic()
        if self._alone_since is None:
            self._alone_since = now
        self._abandoned = now - self._alone_since >= GRACE_S
        if not self._abandoned:
            fcntl.flock(self._users, fcntl.LOCK_UN)
        return self._abandoned

    def _evict_orphan(self) -> None:
        """Two servers on one append-only file would ruin it: wait until the folder is empty."""
        started_at = time.monotonic()
        asked = killed = False
        while not try_lock(self._server_lock, fcntl.LOCK_EX):
            waited_s = time.monotonic() - started_at
            orphan = read_record(self._folder.orphan)
            if self._terminated or waited_s > ORPHAN_S_MAX:
                pid = orphan.pid if orphan else "unknown"
                raise ServerFailed(f"an earlier server (pid {pid}) does not leave the folder")
            if orphan and not asked:
                asked = ask_to_leave(orphan, self._folder)
            if orphan and not killed and waited_s > ORPHAN_S_MAX / 2:
                killed = True
                kill_orphan(orphan, self._folder)
            time.sleep(STARTING_POLL_S)
        self._folder.orphan.unlink(missing_ok=True)

    def _start(self, program: str) -> None:
        fsync: Fsync = "always" if self._folder.always.exists() else self._record.fsync
        port = self._record.port if port_is_free(self._record.port) else choose_port()
        # Recorded before the server exists, so that a successor of ours can always reach it.
        self._publish(dataclasses.replace(self._record, port=port, fsync=fsync, pid=None))
        self._starts += 1
        self._answers = False
        self._heard_at = time.monotonic()
        config = filled_pipe(server_config(self._folder.path, self._record))
        try:
            self._process = process = subprocess.Popen(
                [program, "-"],
                stdin=config,
                stdout=sys.stderr,
                stderr=sys.stderr,
                cwd=self._folder.path,
                pass_fds=(self._server_lock,),
                preexec_fn=die_with_parent(),
            )
        except OSError as error:
            raise ServerFailed(f"{program} can't be run: {error}") from error
        finally:
            os.close(config)
        self._publish(dataclasses.replace(self._record, pid=process.pid))

    def _probe(self, process: subprocess.Popen[bytes]) -> None:
        record, reply = self._record, self._ask("PING")
        if reply == "+PONG":
            self._answers = True
            self._publish(dataclasses.replace(record, state="ready"))
        elif isinstance(reply, str) and reply.startswith("-LOADING"):
            self._heard_at = time.monotonic()
            if record.state == "starting":
                self._publish(dataclasses.replace(record, state="loading"))
        elif time.monotonic() - self._heard_at > SILENT_S_MAX:
            say(f"the server did not answer for {SILENT_S_MAX:.0f} s and is killed")
            process.kill()

    def _note_exit(self, code: int) -> None:
        self._process, self._answers = None, False
        if self._record.state != "ready":
            # Its own refusal, not a signal from outside, nor a port that was taken under it.
            refused = code > 0 and port_is_free(self._record.port)
            if refused or self._starts >= START_TRIES:
                raise ServerFailed(f"the server ended with code {code} before it was ready")
        now = time.monotonic()
        if now - self._heard_at >= STEADY_S:
            self._crashes = 0
        delay_s = min(RESTART_S_MAX, RESTART_S_BASE * 2 ** min(self._crashes, 16))
        self._crashes += 1
        self._restart_at = now + delay_s
        say(f"the server ended with code {code}; starting it again in {delay_s:.1f} s")

    def _raise_fsync(self) -> None:
        """Users that asked for it wait until the record says so, hence only after the OK."""
        if self._ask("CONFIG", "SET", "appendfsync", "always") == "+OK":
            self._publish(dataclasses.replace(self._record, fsync="always"))

    def _ask(self, *command: str) -> Reply:
        try:
            return exchange(self._record.port, self._record.password, *command)
        except (OSError, ValueError):
            return None

    def _publish(self, record: Record) -> None:
        self._record = record
        write_record(self._folder.record, record)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                say(f"the server did not stop within {STOP_S_MAX:.0f} s and is killed")
                self._process.kill()
                self._process.wait()
        if not is_same_file(self._lock, self._folder.supervisor_lock):
            return  # the folder was replaced under us: its files are our successor's
        if self._record.state == "failed":
            self._publish(self._record)  # our starter waits for a word
        else:
            self._folder.record.unlink(missing_ok=True)
        if self._abandoned:
            self._folder.always.unlink(missing_ok=True)


def ask_to_leave(orphan: Record, folder: Folder) -> bool:
    """True when there is nothing more to ask for; a busy server is asked again."""
    try:
        reply = exchange(orphan.port, orphan.password, "CONFIG", "GET", "dir")
        if not isinstance(reply, list) or len(reply) != 2:
            return False
        if folder.path.samefile(str(reply[1])):
            say(f"stopping the server of an earlier supervisor, pid {orphan.pid}")
            # The append-only file is synced on the way out; there is no RDB to save.
            exchange(orphan.port, orphan.password, "SHUTDOWN", "NOSAVE")
    except ConnectionError:
        return True  # it hung up: leaving, or gone
    except (OSError, ValueError):
        return False
    return True


def kill_orphan(orphan: Record, folder: Folder) -> None:
    """Only a process that works in our folder: the recorded pid may be somebody else's now."""
    with contextlib.suppress(OSError):
        if orphan.pid and folder.path.samefile(f"/proc/{orphan.pid}/cwd"):
            say(f"killing the server of an earlier supervisor, pid {orphan.pid}")
            os.kill(orphan.pid, signal.SIGKILL)


def filled_pipe(text: bytes) -> int:
    """The end to read from. A pipe holds 64 KiB, many times what we put in."""
    reader, writer = os.pipe()
    os.write(writer, text)
    os.close(writer)
    return reader


def die_with_parent() -> Callable[[], None] | None:
    """Linux only: a killed supervisor's server gets SIGTERM. Elsewhere the successor acts."""
    if sys.platform != "linux":
        return None
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def prepare() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return prepare


def bound_log(folder: Folder) -> None:
    with contextlib.suppress(OSError):
        if folder.log.stat().st_size > LOG_BYTES_MAX:
            os.truncate(folder.log, 0)


def say(text: str) -> None:
    """Into the server's log, which is our stderr."""
    sys.stderr.write(f"{os.getpid()}:supervisor {time.strftime('%d %b %Y %H:%M:%S')} {text}\n")
    sys.stderr.flush()


def main(arguments: list[str]) -> int:
    """Arguments: folder, server binary, flavour, version, and the descriptor of our lock.

    The user that starts us takes the supervisor's lock and hands it down, so there is no
    moment in which two could start.
    """
    folder = Folder(Path(arguments[0]))
    lock = int(arguments[4]) if len(arguments) > 4 else open_private(folder.supervisor_lock)
    if not try_lock(lock, fcntl.LOCK_EX):
        return EXIT_NOT_NEEDED
    os.set_inheritable(lock, False)
    if os.fork() != 0:
        os._exit(0)  # our starter waits for this, so it has no child left to reap
    os.setsid()
    os.umask(0o077)
    bound_log(folder)
    Supervisor(folder, Binary(*arguments[1:4]), lock).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
