"""The SQL database under pickup's offline queue and the transactions' archive.

One `Database` stands for an SQLite file or a PostgreSQL database and hides the difference: a
write transaction is committed to disk when its block has ended (`begin`), a read can't write
(`connect`), a batch may be sent twice (`insert_once`), and each room's tables are brought up to
date under a lock (`migrate`). What the database could not do is DatabaseUnavailable, never a
success; only a COMMIT whose answer was lost is OutcomeUnknown. Nothing here knows a room's
tables. SQLAlchemy and Alembic are imported when a database is opened, not with this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import re
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from angarium.core.errors import (
    AngariumError,
    DatabaseUnavailable,
    OutcomeUnknown,
    SettingInvalid,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table
    from sqlalchemy.engine import ExceptionContext
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

SETTING = "ANGARIUM_DATABASE_URL"
FORMS = "write sqlite:///path/to/file.db or postgresql://user:password@host:5432/database"

# How long one statement, a wait for SQLite's write lock, or a wait for a free connection may
# take: longer than any healthy batch, short enough that a caller's retry still helps.
CALL_TIMEOUT_MS = 30_000
# A server that does not even greet us within this time is down for our purposes.
CONNECT_TIMEOUT_S = 10.0
# PostgreSQL allows 100 by default and several processes of ours share it.
CONNECTIONS_MAX = 8
# How long a process waits for another one that migrates, which may be rewriting a big table.
MIGRATION_WAIT_S = 600
# The advisory lock of all our migrations in one PostgreSQL database ("angarium" in ASCII).
MIGRATION_LOCK = 0x616E67617269756D
POLL_S = 0.01

# Primary result codes that say "not now" or "not any more"; all others are our own mistakes.
_SQLITE_UNAVAILABLE = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOTADB,
    }
)
# The same for PostgreSQL, as beginnings of SQLSTATEs: connection, authorisation, rolled back by
# the server, read-only, out of resources, lock not available, operator, system, corruption.
_POSTGRES_UNAVAILABLE = ("08", "28", "40", "25006", "53", "55P03", "57", "58", "XX001", "XX002")
# When opening: the URL itself is at fault, and trying again won't help.
_POSTGRES_MISCONFIGURED = ("28", "3D", "42704", "22023")

_ROOM = re.compile(r"[a-z][a-z_]{0,39}")

# Alembic keeps the migration that is running in a module of its own (`alembic.op`), so one
# process can run one at a time, whatever loop or database it is for.
_ALEMBIC = threading.Lock()


@dataclass(frozen=True)
class _Backend:
    """What differs between the two databases."""

    writer: AsyncEngine
    reader: AsyncEngine
    migrator: Callable[[], AsyncEngine]
    before_migration: tuple[str, ...] = ()
    # Returns a row for each thing that is wrong.
    after_migration: str | None = None


class Database:
    """An open database. Close it when all its users are done."""

    def __init__(self, backend: _Backend) -> None:
        self._backend = backend
        self._closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        call_timeout_ms: int = CALL_TIMEOUT_MS,
        connections_max: int = CONNECTIONS_MAX,
    ) -> Database:
        """Connect once. SettingInvalid if the URL can't be right, DatabaseUnavailable otherwise."""
        scheme, separator, _ = url.partition("://")
        if separator and scheme == "sqlite":
            return cls(await _open_sqlite(url, call_timeout_ms, connections_max))
        if separator and scheme in ("postgresql", "postgres"):
            return cls(await _open_postgres(url, call_timeout_ms, connections_max))
        # The URL may hold a password, so it is never repeated.
        raise SettingInvalid(SETTING, "is neither an sqlite nor a postgresql URL", FORMS)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """A write transaction: on disk when the block has ended, undone by any error in it."""
        async with self._transaction(self._backend.writer) as connection:
            yield connection

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        """For reading. A write is refused: without a commit it would look like a success."""
        async with self._checked_out(self._backend.reader) as connection:
            yield connection

    async def migrate(self, room: str, versions: Path) -> None:
        """Bring the room's tables up to the newest revision in its folder: all of it or nothing.

        SQLite checks foreign keys once at the end, so that a table may be rebuilt.
        """
        if not _ROOM.fullmatch(room):
            raise ValueError(f"{room!r} can't be part of a table's name")
        async with _alembic_turn():
            engine = self._backend.migrator()
            try:
                async with self._transaction(engine) as connection:
                    for statement in self._backend.before_migration:
                        await connection.exec_driver_sql(statement)
                    await connection.run_sync(_upgrade, room, versions)
                    if self._backend.after_migration:
                        faults = await connection.exec_driver_sql(self._backend.after_migration)
                        if fault := faults.first():
                            raise AngariumError(f"the migration of {room} orphans rows: {fault}")
            finally:
                await engine.dispose()

    async def close(self) -> None:
        self._closed = True
        await self._backend.writer.dispose()
        await self._backend.reader.dispose()

    @asynccontextmanager
    async def _transaction(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        committing = False
        async with self._checked_out(engine) as connection:
            try:
                async with connection.begin():
                    yield connection
                    committing = True
            except DatabaseUnavailable as error:
                # A refused COMMIT left nothing behind; one that was cut off may have arrived.
                if committing and connection.invalidated:
                    raise OutcomeUnknown(f"the commit was not answered: {error}") from error
                raise

    @asynccontextmanager
    async def _checked_out(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        from sqlalchemy.exc import TimeoutError as PoolTimeout

        if self._closed:
            raise DatabaseUnavailable("the database was closed")
        async with contextlib.AsyncExitStack() as stack:
            try:
                connection = await stack.enter_async_context(engine.connect())
            except PoolTimeout as error:
                raise DatabaseUnavailable("all connections to the database are busy") from error
            except OSError as error:
                raise _unavailable(error) from error
            yield connection


# SQLite


async def _open_sqlite(url: str, call_timeout_ms: int, connections_max: int) -> _Backend:
    from sqlalchemy.pool import NullPool

    path = _sqlite_path(url)
    await asyncio.to_thread(_prepare_sqlite_file, path, call_timeout_ms)
    # FULL: a commit returns after fsync. NORMAL would lose the last commits with the power.
    pragmas: dict[str, str | int] = {
        "busy_timeout": call_timeout_ms,
        "synchronous": "FULL",
        "foreign_keys": "ON",
    }
    pool = {"max_overflow": 0, "pool_timeout": call_timeout_ms / 1000}
    migration = pragmas | {"foreign_keys": "OFF", "busy_timeout": MIGRATION_WAIT_S * 1000}
    return _Backend(
        # SQLite has one writer at a time. With one connection the writers of this process wait
        # in the pool's fair queue; only other processes are met at the file's lock. Taking that
        # lock at once (IMMEDIATE) spares a transaction that reads first from failing later.
        writer=_sqlite_engine(path, pragmas, "BEGIN IMMEDIATE", pool_size=1, **pool),
        reader=_sqlite_engine(
            path, pragmas | {"query_only": "ON"}, "BEGIN", pool_size=connections_max, **pool
        ),
        migrator=lambda: _sqlite_engine(path, migration, "BEGIN IMMEDIATE", poolclass=NullPool),
        after_migration="PRAGMA foreign_key_check",
    )


def _sqlite_path(url: str) -> Path:
    rest = url.removeprefix("sqlite://")
    name = rest.removeprefix("/")
    if rest == name or not name or name.startswith(":") or name.endswith("/"):
        raise SettingInvalid(SETTING, "names no file", FORMS)
    if "?" in name or "\0" in name:
        raise SettingInvalid(SETTING, "an sqlite URL takes no options", FORMS)
    return Path(name).absolute()


def _prepare_sqlite_file(path: Path, busy_ms: int) -> None:
    """Create the file, readable by its owner only, and switch it to WAL."""
    fix = "name a file on a local disk, in a folder that this user may write to"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise SettingInvalid(SETTING, f"{path} can't be opened: {error.strerror}", fix) from error
    try:
        with contextlib.closing(
            sqlite3.connect(path, timeout=0, isolation_level=None)
        ) as connection:
            mode = _switch_to_wal(connection, busy_ms)
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_NOTADB:
            raise SettingInvalid(SETTING, f"{path} is not an SQLite database", fix) from error
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            raise SettingInvalid(SETTING, f"{path} can't be written: {error}", fix) from error
        raise DatabaseUnavailable(f"{path}: {error}") from error
    if mode != "wal":
        raise SettingInvalid(SETTING, f"{path} can't be used in WAL mode", fix)


def _switch_to_wal(connection: sqlite3.Connection, busy_ms: int) -> str:
    """The mode stays with the file. SQLite itself won't wait for another who switches too."""
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


def _sqlite_engine(
    path: Path, pragmas: Mapping[str, str | int], begin: str, **pool: Any
) -> AsyncEngine:
    from sqlalchemy import URL, event
    from sqlalchemy.ext.asyncio import create_async_engine

    url = URL.create("sqlite+aiosqlite", database=str(path))
    # Parameters are payloads, and must not end up in a log with an error's text.
    engine = create_async_engine(url, hide_parameters=True, **pool)

    def prepare(connection: Any, _: object) -> None:
        # The driver would begin transactions by itself, and not before DDL or SELECT.
        connection.isolation_level = None
        cursor = connection.cursor()
        for name, value in pragmas.items():
            cursor.execute(f"PRAGMA {name}={value}")
        cursor.close()

    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine.sync_engine, "connect", prepare)
    event.listen(engine.sync_engine, "begin", start)
    event.listen(engine.sync_engine, "handle_error", _translated, retval=True)
    return engine


# PostgreSQL


async def _open_postgres(url: str, call_timeout_ms: int, connections_max: int) -> _Backend:
    from sqlalchemy.pool import NullPool

    try:
        driver = importlib.import_module("asyncpg")
    except ModuleNotFoundError as error:
        problem = "PostgreSQL needs the driver asyncpg, which is not installed"
        raise SettingInvalid(SETTING, problem, "pip install 'angarium[postgres]'") from error
    await _probe_postgres(driver, url)
    call_timeout_s = call_timeout_ms / 1000
    writer = _postgres_engine(
        driver,
        url,
        call_timeout_s,
        pool_size=connections_max,
        max_overflow=0,
        pool_timeout=call_timeout_s,
        # Connections of a server that was restarted meanwhile are replaced before they are used.
        pool_pre_ping=True,
    )
    return _Backend(
        writer=writer,
        reader=writer.execution_options(postgresql_readonly=True),
        # Rewriting a big table may take longer than any call should.
        migrator=lambda: _postgres_engine(driver, url, None, poolclass=NullPool),
        before_migration=(
            f"SET LOCAL lock_timeout = '{MIGRATION_WAIT_S}s'",
            f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})",
        ),
    )


async def _probe_postgres(driver: Any, url: str) -> None:
    """Connect by hand once, because only the driver's own errors tell what is wrong."""
    try:
        place = urlsplit(url)
        shown = f"{place.hostname or 'localhost'}:{place.port or 5432}{place.path}"
        connection = await driver.connect(url, timeout=CONNECT_TIMEOUT_S)
    except driver.PostgresError as error:
        problem = f"{shown} answers: {_first_line(error)}"
        if (error.sqlstate or "").startswith(_POSTGRES_MISCONFIGURED):
            fix = "correct the user, the password, the database's name or the options"
            raise SettingInvalid(SETTING, problem, fix) from error
        raise DatabaseUnavailable(problem) from error
    except OSError as error:
        raise DatabaseUnavailable(f"{shown} can't be reached: {_first_line(error)}") from error
    except (ValueError, driver.InterfaceError) as error:
        # Its text may repeat parts of the URL, so it is left to the traceback.
        raise SettingInvalid(SETTING, "is not a URL that PostgreSQL understands", FORMS) from error
    await connection.close()


def _postgres_engine(
    driver: Any, url: str, call_timeout_s: float | None, **pool: Any
) -> AsyncEngine:
    from sqlalchemy import event
    from sqlalchemy.ext.asyncio import create_async_engine

    async def connect() -> Any:
        try:
            # The driver reads the URL itself, so sslmode and the rest mean what libpq says.
            connection = await driver.connect(
                url, timeout=CONNECT_TIMEOUT_S, command_timeout=call_timeout_s
            )
            # Where the server's default is not to wait for the disk, ours is.
            await connection.execute(
                "SELECT set_config('synchronous_commit', 'on', false)"
                " WHERE current_setting('synchronous_commit') = 'off'"
            )
        except (OSError, driver.PostgresError, driver.InterfaceError) as error:
            raise _unavailable(error) from error
        return connection

    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=connect, hide_parameters=True, **pool
    )
    event.listen(engine.sync_engine, "handle_error", _translated, retval=True)
    return engine


# Errors


def _translated(context: ExceptionContext) -> AngariumError | None:
    """Our error in place of the driver's, or None to let the driver's through."""
    error = context.original_exception
    if context.is_pre_ping:
        # Whatever a ping runs into, the pool replaces that connection and nobody notices.
        context.is_disconnect = True
        return None
    if isinstance(error, OSError):
        # The network or a time-out: nothing is known about this connection any more.
        context.is_disconnect = True
    sqlite_code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if sqlite_code == sqlite3.SQLITE_IOERR:
        # The disk failed us halfway; a fresh connection reads what really is in the file.
        context.is_disconnect = True
    sqlstate = getattr(error, "sqlstate", None) or ""
    if sqlstate:
        _drop_details(context.sqlalchemy_exception)
        _drop_details(error)
    if (
        (context.is_disconnect and isinstance(error, Exception))
        or sqlite_code in _SQLITE_UNAVAILABLE
        or sqlstate.startswith(_POSTGRES_UNAVAILABLE)
    ):
        return _unavailable(error)
    return None


def _unavailable(error: BaseException) -> DatabaseUnavailable:
    """A driver's words alone do not tell whose connection it was."""
    return DatabaseUnavailable(f"the database: {_first_line(error)}")


def _drop_details(error: Any) -> None:
    """PostgreSQL's further lines repeat the row that failed, and rows are payloads."""
    while error is not None:
        if getattr(error, "detail", None):
            error.detail = None
        error.args = tuple(
            part.partition("\n")[0] if isinstance(part, str) else part for part in error.args
        )
        error = error.__cause__


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


# Migrations


@asynccontextmanager
async def _alembic_turn() -> AsyncIterator[None]:
    """Polls, because the next in line may live in another loop or thread."""
    while not _ALEMBIC.acquire(blocking=False):  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    try:
        yield
    finally:
        _ALEMBIC.release()


def _upgrade(connection: Connection, room: str, versions: Path) -> None:
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(versions), version_locations=[str(versions)])
    head = scripts.get_current_head()
    if head is None:
        raise FileNotFoundError(f"{versions} holds no migrations")
    context = MigrationContext.configure(
        connection,
        opts={
            "version_table": f"angarium_{room}_version",
            # Alembic has no public name for "the steps up to here"; its own command uses this.
            "fn": lambda current, _: scripts._upgrade_revs(head, current),
        },
    )
    known = {script.revision for script in scripts.walk_revisions()}
    newer = set(context.get_current_heads()) - known
    if newer:
        problem = f"the tables of {room} are at {', '.join(newer)}, which this version can't know"
        raise SettingInvalid(SETTING, problem, "run the newer version that migrated them")
    with Operations.context(context):
        context.run_migrations()


# Rows


async def insert_once(
    connection: AsyncConnection, table: Table, rows: Sequence[Mapping[str, Any]]
) -> int:
    """Store the rows whose primary key is not there yet, and return how many those were.

    Only the primary key makes a row "the same": any other broken constraint is an error, since
    the row would otherwise be dropped in silence.
    """
    if not rows:
        return 0
    key = [column.key for column in table.primary_key]
    names = rows[0].keys()
    if not key or not names >= set(key):
        raise ValueError(f"rows for {table.name} need their primary key to be safe to send twice")
    # SQLAlchemy takes the columns from the first row and drops what others have beyond them.
    if any(row.keys() != names for row in rows):
        raise ValueError(f"rows for {table.name} differ in their columns")
    # In the order of the key: two processes that store the same rows then can't deadlock, and
    # neighbours share a page of the index.
    ordered = sorted(rows, key=itemgetter(*key))
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects import sqlite

        once = sqlite.insert(table).on_conflict_do_nothing(index_elements=key)
        options = {"preserve_rowcount": True}
        return (await connection.execute(once, ordered, execution_options=options)).rowcount
    from sqlalchemy import Integer, literal_column
    from sqlalchemy.dialects import postgresql

    # The driver counts no rows in executemany; many VALUES with RETURNING do, and are faster.
    counted = postgresql.insert(table).on_conflict_do_nothing(index_elements=key)
    result = await connection.execute(counted.returning(literal_column("1", Integer)), ordered)
    return len(result.all())
