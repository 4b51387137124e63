"""PostgreSQL as the database: a pool of sessions, each with its own time limits.

The server holds all locks, so backends are not shared: each handle has its own pool. asyncpg is
imported when a database is opened.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from angarium.runtime.database.backend import (
    FORMS,
    MIGRATION_WAIT_S,
    SETTING,
    Backend,
    Engines,
    first_line,
    unavailable,
)
from angarium.runtime.errors import DatabaseUnavailable, SettingInvalid

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

# A server that does not complete a connection within this time counts as down.
CONNECT_TIMEOUT_S = 10.0
# The advisory lock of all our migrations in one PostgreSQL database ("angarium" in ASCII).
MIGRATION_LOCK = 0x616E67617269756D
# SQLSTATEs that mean that the URL is wrong, so that a retry would not help.
_MISCONFIGURED = ("28", "3D", "42704", "22023")


async def open_postgres(url: str, call_timeout_ms: int, connections_max: int) -> Backend:
    from sqlalchemy.pool import NullPool

    try:
        driver = importlib.import_module("asyncpg")
    except ModuleNotFoundError as error:
        problem = "PostgreSQL needs the driver asyncpg, which is not installed"
        raise SettingInvalid(SETTING, problem, "pip install 'angarium[postgres]'") from error
    await _probe(driver, url)
    backend = Backend()
    call_timeout_s = call_timeout_ms / 1000
    writer = _engine(
        backend,
        driver,
        url,
        call_timeout_s,
        pool_size=connections_max,
        max_overflow=0,
        pool_timeout=call_timeout_s,
        # Replaces the connections to a restarted server before they are used.
        pool_pre_ping=True,
    )
    backend.engines = Engines(
        writer=writer,
        reader=writer.execution_options(postgresql_readonly=True),
        # Rewriting a big table may take longer than any call should.
        migrator=lambda: _engine(backend, driver, url, None, poolclass=NullPool),
        before_migration=(
            f"SET LOCAL lock_timeout = '{MIGRATION_WAIT_S}s'",
            f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})",
        ),
    )
    backend.handles += 1
    return backend


async def _probe(driver: Any, url: str) -> None:
    """Connect without SQLAlchemy once: only the driver's own errors tell what is wrong."""
    try:
        place = urlsplit(url)
        shown = f"{place.hostname or 'localhost'}:{place.port or 5432}{place.path}"
        connection = await driver.connect(url, timeout=CONNECT_TIMEOUT_S)
    except driver.PostgresError as error:
        problem = f"{shown} answers: {first_line(error)}"
        if (error.sqlstate or "").startswith(_MISCONFIGURED):
            fix = "correct the user, the password, the database's name or the options"
            raise SettingInvalid(SETTING, problem, fix) from error
        raise DatabaseUnavailable(problem) from error
    except OSError as error:
        raise DatabaseUnavailable(f"{shown} can't be reached: {first_line(error)}") from error
    except (ValueError, driver.InterfaceError) as error:
        # The driver's text may quote the URL, so it is only in the traceback.
        raise SettingInvalid(SETTING, "is not a URL that PostgreSQL understands", FORMS) from error
    # The server has answered. One that does not say goodbye in time is dropped.
    with contextlib.suppress(OSError):
        await connection.close(timeout=CONNECT_TIMEOUT_S)


def _engine(
    backend: Backend, driver: Any, url: str, call_timeout_s: float | None, **pool: Any
) -> AsyncEngine:
    from sqlalchemy import event
    from sqlalchemy.ext.asyncio import create_async_engine

    async def connect() -> Any:
        try:
            # The driver parses the URL, so sslmode and other options mean the same as in libpq.
            connection = await driver.connect(
                url, timeout=CONNECT_TIMEOUT_S, command_timeout=call_timeout_s
            )
            try:
                # A commit must wait for the disk, also if the server's default is not to wait.
                await connection.execute(
                    "SELECT set_config('synchronous_commit', 'on', false)"
                    " WHERE current_setting('synchronous_commit') = 'off'"
                )
            except BaseException:
                # The pool does not know this connection yet, so nobody else would close it.
                connection.terminate()
                raise
        except (OSError, driver.PostgresError, driver.InterfaceError) as error:
            raise unavailable(error) from error
        return connection

    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=connect, hide_parameters=True, **pool
    )
    event.listen(engine.sync_engine, "handle_error", backend.translate, retval=True)
    return engine
