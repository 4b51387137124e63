"""SQLite as the database: one file, one backend for each event loop that uses it.

POSIX locks belong to a process and a file, not to a descriptor: closing any descriptor of the file
drops all locks that the process has on it. Other processes then take the file for unused and
delete the write-ahead log in which this process stores its commits. So nothing but the SQLite
library may open the file, its `-wal` or its `-shm`: no copy, no checksum, no second SQLite library
in the process. The library itself keeps a descriptor open while any of its connections has a lock.
Creation is the only exception, and it happens before any connection can exist.

Connections belong to the event loop that opened them. Handles of one loop share a backend; those
of different loops (the client without async runs in a thread) have one each, which is safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import stat
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from angarium.runtime.database.backend import FORMS, MIGRATION_WAIT_S, SETTING, Backend, Engines
from angarium.runtime.errors import DatabaseUnavailable, SettingInvalid

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncEngine

POLL_S = 0.01
_FIX = "name a file on a local disk, in a folder that this user may write to"


class _Connection(sqlite3.Connection):
    """Closes its cursors with itself.

    The traceback of an error refers to the cursor that failed. SQLite keeps the file, its locks
    and its view of the log for as long as one cursor has a statement, and the garbage collector
    runs seldom.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._cursors: weakref.WeakSet[sqlite3.Cursor] = weakref.WeakSet()

    def cursor(self, *args: Any) -> Any:
        cursor = super().cursor(*args)
        self._cursors.add(cursor)
        return cursor

    def close(self) -> None:
        for cursor in list(self._cursors):
            cursor.close()
        super().close()


@dataclass(frozen=True)
class _Place:
    """Two handles with the same values share a backend."""

    loop: asyncio.AbstractEventLoop
    device: int
    inode: int
    call_timeout_ms: int
    connections_max: int


# The open files of this process. A key is used by the thread of its loop only.
_OPEN: dict[_Place, Backend] = {}
# No thread may open the file between its creation and the closing of that descriptor.
_CREATING = threading.Lock()


async def open_sqlite(url: str, call_timeout_ms: int, connections_max: int) -> Backend:
    path = _path_of(url)
    status = await asyncio.to_thread(_prepare_file, path, call_timeout_ms)
    loop = asyncio.get_running_loop()
    place = _Place(loop, status.st_dev, status.st_ino, call_timeout_ms, connections_max)
    backend = _OPEN.get(place)
    if backend is None:
        backend = _OPEN[place] = _make_backend(path, call_timeout_ms, connections_max)
    backend.handles += 1
    return backend


def forget(backend: Backend) -> None:
    """Remove a backend without handles; the next `open_sqlite` creates a new one."""
    for place in [place for place, each in _OPEN.items() if each is backend]:
        del _OPEN[place]


def _make_backend(path: Path, call_timeout_ms: int, connections_max: int) -> Backend:
    from sqlalchemy.pool import NullPool

    backend = Backend()
    # FULL: a commit returns after fsync. With NORMAL a power failure loses the last commits.
    pragmas: dict[str, str | int] = {
        "busy_timeout": call_timeout_ms,
        "synchronous": "FULL",
        "foreign_keys": "ON",
    }
    reading = pragmas | {"query_only": "ON"}
    migrating = pragmas | {"foreign_keys": "OFF", "busy_timeout": MIGRATION_WAIT_S * 1000}
    pool = {"max_overflow": 0, "pool_timeout": call_timeout_ms / 1000}

    def engine(pragmas: Mapping[str, str | int], begin: str, **pool: Any) -> AsyncEngine:
        return _engine(backend, path, pragmas, begin, **pool)

    backend.engines = Engines(
        # SQLite has one writer at a time. With one connection the writers of this process wait in
        # the pool's fair queue, and only other processes compete for the file's lock. IMMEDIATE
        # takes that lock first, so a transaction that reads before it writes can't fail later.
        writer=engine(pragmas, "BEGIN IMMEDIATE", pool_size=1, **pool),
        reader=engine(reading, "BEGIN", pool_size=connections_max, **pool),
        migrator=lambda: engine(migrating, "BEGIN IMMEDIATE", poolclass=NullPool),
        after_migration="PRAGMA foreign_key_check",
        before_renewal=lambda: _match_permissions(path),
    )
    return backend


def _engine(
    backend: Backend, path: Path, pragmas: Mapping[str, str | int], begin: str, **pool: Any
) -> AsyncEngine:
    from sqlalchemy import URL, event
    from sqlalchemy.ext.asyncio import create_async_engine

    url = URL.create("sqlite+aiosqlite", database=str(path))
    # Parameters are payloads, and an error's text must not write them to a log.
    engine = create_async_engine(
        url, hide_parameters=True, connect_args={"factory": _Connection}, **pool
    )

    def prepare(connection: Any, _: object) -> None:
        # The driver's own transactions do not begin before DDL or SELECT.
        connection.isolation_level = None
        cursor = connection.cursor()
        for name, value in pragmas.items():
            cursor.execute(f"PRAGMA {name}={value}")
        cursor.close()

    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine.sync_engine, "connect", prepare)
    event.listen(engine.sync_engine, "begin", start)
    event.listen(engine.sync_engine, "handle_error", backend.translate, retval=True)
    return engine


# The file


def _path_of(url: str) -> Path:
    """The path without links, so that two names of one file give one path."""
    rest = url.removeprefix("sqlite://")
    name = rest.removeprefix("/")
    if rest == name or not name or name.startswith(":") or name.endswith("/"):
        raise SettingInvalid(SETTING, "names no file", FORMS)
    if "?" in name or "\0" in name:
        raise SettingInvalid(SETTING, "an sqlite URL takes no options", FORMS)
    return Path(os.path.realpath(name))


def _prepare_file(path: Path, busy_ms: int) -> os.stat_result:
    """When this returns, the file exists, is writable and is in WAL mode."""
    try:
        _create_file(path)
        status = path.stat()
    except OSError as error:
        raise SettingInvalid(SETTING, f"{path} can't be opened: {error.strerror}", _FIX) from error
    effective = os.access in os.supports_effective_ids
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=effective):
        # SQLite would open it read-only, and later writes would fail.
        raise SettingInvalid(SETTING, f"{path} can't be opened: permission denied", _FIX)
    _match_permissions(path)
    try:
        with contextlib.closing(
            sqlite3.connect(path, timeout=0, isolation_level=None)
        ) as connection:
            mode = _switch_to_wal(connection, busy_ms)
    except sqlite3.Error as error:
        raise _opening_error(path, error) from error
    if mode != "wal":
        raise SettingInvalid(SETTING, f"{path} can't be used in WAL mode", _FIX)
    return status


def _create_file(path: Path) -> None:
    """Readable by its owner only; SQLite gives `-wal` and `-shm` the same permissions.

    An existing file is not opened. The descriptor of a new file is closed before any thread of
    this process can have a lock on it, which closing would drop.
    """
    with _CREATING:
        if path.exists():
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another process was faster
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(path, flags, 0o600))


def _match_permissions(path: Path) -> None:
    """`-wal` and `-shm` keep the permissions that the file had when SQLite made them.

    If these were too few, correcting those of the file is not enough. This opens no file.
    """
    with contextlib.suppress(OSError):  # SQLite reports files that it can't use
        mode = stat.S_IMODE(path.stat().st_mode)
        for suffix in ("-wal", "-shm"):
            beside = path.with_name(path.name + suffix)
            if beside.exists() and stat.S_IMODE(beside.stat().st_mode) != mode:
                beside.chmod(mode)


def _opening_error(path: Path, error: sqlite3.Error) -> SettingInvalid | DatabaseUnavailable:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return SettingInvalid(SETTING, f"{path} is not an SQLite database", _FIX)
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return SettingInvalid(SETTING, f"{path} can't be written: {error}", _FIX)
    return DatabaseUnavailable(f"{path}: {error}")


def _switch_to_wal(connection: sqlite3.Connection, busy_ms: int) -> str:
    """Retries, because SQLite does not wait for another process that switches the mode."""

    deadline = time.monotonic() + busy_ms / 1000
    while True:
        try:
            row = connection.execute("PRAGMA journal_mode=WAL").fetchone()
            return str(row[0])
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)
