"""The open connections to one SQL database, and the translation of the drivers' errors.

A `Backend` holds the connection pools of an SQLite file or a PostgreSQL database. Several
`Database` handles of one event loop may share it; the last handle that closes ends it. An error
after which a connection may be unusable marks the backend as failed. The next call then closes
every connection and opens new ones, so the backend works again once the cause is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from angarium.runtime.errors import AngariumError, DatabaseUnavailable

if TYPE_CHECKING:
    from sqlalchemy.engine import ExceptionContext
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

SETTING = "ANGARIUM_DATABASE_URL"
FORMS = "write sqlite:///path/to/file.db or postgresql://user:password@host:5432/database"
# How long a process waits for another process's migration, which may rewrite a big table.
MIGRATION_WAIT_S = 600
# How long a call waits for other calls to end before it opens new connections beside them.
RENEWAL_WAIT_S = 1.0

# SQLite's primary result codes for a busy database; the connection itself still works.
_SQLITE_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
# A write on a full disk is refused and undone, but the connection's cache may be wrong.
_SQLITE_FULL = frozenset({sqlite3.SQLITE_FULL})
# After these errors the connection and its shared memory can't be trusted. A connection that was
# opened while the file was read-only stays read-only.
_SQLITE_BROKEN = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOTADB,
    }
)
_SQLITE_UNAVAILABLE = _SQLITE_BUSY | _SQLITE_FULL | _SQLITE_BROKEN
# The same for PostgreSQL, as beginnings of SQLSTATEs: connection, authorisation, rolled back by
# the server, read-only, out of resources, lock not available, operator, system, corruption.
_POSTGRES_UNAVAILABLE = ("08", "28", "40", "25006", "53", "55P03", "57", "58", "XX001", "XX002")
# The session has ended, or its server became read-only after a failover.
_POSTGRES_BROKEN = ("08", "25006", "57P", "XX001", "XX002")


@dataclass(frozen=True)
class Engines:
    """What differs between the two databases."""

    writer: AsyncEngine
    reader: AsyncEngine
    migrator: Callable[[], AsyncEngine]
    before_migration: tuple[str, ...] = ()
    # A statement that returns one row per violation.
    after_migration: str | None = None
    # Runs when all connections are closed and new ones are about to be opened.
    before_renewal: Callable[[], None] | None = None


class Backend:
    """Used by one event loop. `translate` must be the error handler of all its engines."""

    engines: Engines

    def __init__(self) -> None:
        self.handles = 0
        self._in_use = 0
        self._unused = asyncio.Event()
        # None, or after a failure the time until which the next call waits for other calls.
        self._renew_by_s: float | None = None
        self._renewing = asyncio.Lock()

    @asynccontextmanager
    async def checked_out(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        from sqlalchemy.exc import TimeoutError as PoolTimeout

        await self._renew()
        self._in_use += 1
        try:
            async with contextlib.AsyncExitStack() as stack:
                try:
                    connection = await stack.enter_async_context(engine.connect())
                except PoolTimeout as error:
                    raise DatabaseUnavailable("all connections to the database are busy") from error
                except OSError as error:
                    raise unavailable(error) from error
                yield connection
        finally:
            self._in_use -= 1
            if not self._in_use:
                self._unused.set()

    async def dispose(self) -> None:
        await self.engines.writer.dispose()
        await self.engines.reader.dispose()

    async def _renew(self) -> None:
        """Close all connections after a failure: SQLite keeps state while one is open.

        Waits for the calls in progress. If one takes too long, this call opens new connections
        beside it, and the first call that is alone closes all of them.
        """
        if self._renew_by_s is None:
            return
        async with self._renewing:
            if self._renew_by_s is None:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._renew_by_s):
                    while self._in_use:
                        self._unused.clear()
                        await self._unused.wait()
            if not self._in_use:
                await self.dispose()
                if self.engines.before_renewal is not None:
                    self.engines.before_renewal()
                self._renew_by_s = None

    def translate(self, context: ExceptionContext) -> AngariumError | None:
        """Our error in place of the driver's, or None to let the driver's through."""
        error = context.original_exception
        if context.is_pre_ping:
            # After any error of a ping the pool replaces the connection.
            context.is_disconnect = True
            return None
        sqlite_code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        sqlstate = getattr(error, "sqlstate", None) or ""
        if (
            # After a network error or a time-out the state of the connection is unknown.
            isinstance(error, OSError)
            or sqlite_code in _SQLITE_BROKEN
            or sqlstate.startswith(_POSTGRES_BROKEN)
        ):
            context.is_disconnect = True
        if sqlite_code in _SQLITE_BROKEN | _SQLITE_FULL:
            self._renew_by_s = asyncio.get_running_loop().time() + RENEWAL_WAIT_S
        if sqlstate:
            _drop_details(context.sqlalchemy_exception)
            _drop_details(error)
        if (
            (context.is_disconnect and isinstance(error, Exception))
            or sqlite_code in _SQLITE_UNAVAILABLE
            or sqlstate.startswith(_POSTGRES_UNAVAILABLE)
        ):
            return unavailable(error)
        return None


def unavailable(error: BaseException) -> DatabaseUnavailable:
    return DatabaseUnavailable(f"the database: {first_line(error)}")


def first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _drop_details(error: Any) -> None:
    """Removes PostgreSQL's detail lines, which quote the row and so the payload."""

    while error is not None:
        if getattr(error, "detail", None):
            error.detail = None
        error.args = tuple(
            part.partition("\n")[0] if isinstance(part, str) else part for part in error.args
        )
        error = error.__cause__
