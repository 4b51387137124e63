"""The SQL database of pickup's offline queue and of the transactions' archive.

A `Database` is an SQLite file or a PostgreSQL database with the same methods. `begin` is a write
transaction, which is on disk when its block has ended. `connect` is for reading and refuses writes.
`insert_once` may be called twice with the same rows. `migrate` updates a module's tables under a
lock. A failed operation raises DatabaseUnavailable; a COMMIT whose answer was lost raises
OutcomeUnknown. This file uses no module's tables. SQLAlchemy and Alembic are imported when a
database is opened.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from angarium.runtime.database.backend import FORMS, SETTING, Backend
from angarium.runtime.database.postgres import open_postgres
from angarium.runtime.database.sqlite import forget, open_sqlite
from angarium.runtime.errors import (
    AngariumError,
    DatabaseUnavailable,
    OutcomeUnknown,
    SettingInvalid,
)

if TYPE_CHECKING:
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory
    from sqlalchemy import Connection, Table
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

# Limit for one statement, for a wait for SQLite's write lock and for a wait for a free connection.
# Longer than a batch usually takes, and short enough that a caller's retry still helps.
CALL_TIMEOUT_MS = 30_000
# PostgreSQL allows 100 by default and several processes of ours share it.
CONNECTIONS_MAX = 8
POLL_S = 0.01

_MODULE_NAME = re.compile(r"[a-z][a-z_]{0,39}")

# Alembic stores the current migration in a global (`alembic.op`), so a process runs one migration
# at a time, for all its loops and databases.
_ALEMBIC = threading.Lock()


class Database:
    """An open database, for the event loop that opened it.

    Handles of one SQLite file share its connections; closing the last handle closes them.
    """

    def __init__(self, backend: Backend) -> None:
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
        """Connect. Raises SettingInvalid if the URL is wrong, else DatabaseUnavailable."""
        scheme, separator, _ = url.partition("://")
        if separator and scheme == "sqlite":
            return cls(await open_sqlite(url, call_timeout_ms, connections_max))
        if separator and scheme in ("postgresql", "postgres"):
            return cls(await open_postgres(url, call_timeout_ms, connections_max))
        # The error does not quote the URL, which may contain a password.
        raise SettingInvalid(SETTING, "is neither an sqlite nor a postgresql URL", FORMS)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """A write transaction: on disk when the block has ended, rolled back by any error."""
        async with self._transaction(self._backend.engines.writer) as connection:
            yield connection

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        """For reading. A write is refused, because nothing commits it."""
        async with self._checked_out(self._backend.engines.reader) as connection:
            yield connection

    async def migrate(self, module: str, versions: Path) -> None:
        """Migrate the module's tables to the newest revision in its folder, in one transaction.

        If the tables are up to date, this only reads, so it does not wait for a writer. SQLite
        checks foreign keys at the end, so that a revision may rebuild a table.
        """
        if not _MODULE_NAME.fullmatch(module):
            raise ValueError(f"{module!r} can't be part of a table's name")
        engines = self._backend.engines
        async with _alembic_turn():
            async with self.connect() as connection:
                if await connection.run_sync(_is_newest, module, versions):
                    return
            engine = engines.migrator()
            try:
                async with self._transaction(engine) as connection:
                    for statement in engines.before_migration:
                        await connection.exec_driver_sql(statement)
                    await connection.run_sync(_upgrade, module, versions)
                    if engines.after_migration:
                        faults = await connection.exec_driver_sql(engines.after_migration)
                        if fault := faults.first():
                            raise AngariumError(f"the migration of {module} orphans rows: {fault}")
            finally:
                await engine.dispose()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._backend.handles -= 1
        if not self._backend.handles:
            forget(self._backend)
            await self._backend.dispose()

    @asynccontextmanager
    async def _transaction(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        committing = False
        async with self._checked_out(engine) as connection:
            try:
                async with connection.begin():
                    yield connection
                    committing = True
            except DatabaseUnavailable as error:
                # A refused COMMIT changes nothing. If the connection broke, it may have succeeded.
                if committing and connection.invalidated:
                    raise OutcomeUnknown(f"the commit was not answered: {error}") from error
                raise

    @asynccontextmanager
    async def _checked_out(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        if self._closed:
            raise DatabaseUnavailable("the database was closed")
        async with self._backend.checked_out(engine) as connection:
            yield connection


# Migrations


@asynccontextmanager
async def _alembic_turn() -> AsyncIterator[None]:
    """Polls, because another loop or thread may have the lock."""
    while not _ALEMBIC.acquire(blocking=False):  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    try:
        yield
    finally:
        _ALEMBIC.release()


def _upgrade(connection: Connection, module: str, versions: Path) -> None:
    from alembic.operations import Operations

    scripts, context = _migration(connection, module, versions)
    known = {script.revision for script in scripts.walk_revisions()}
    newer = set(context.get_current_heads()) - known
    if newer:
        problem = f"the tables of {module} are at {', '.join(newer)}, unknown to this version"
        raise SettingInvalid(SETTING, problem, "run the newer version that migrated them")
    with Operations.context(context):
        context.run_migrations()


def _is_newest(connection: Connection, module: str, versions: Path) -> bool:
    scripts, context = _migration(connection, module, versions)
    return context.get_current_heads() == (scripts.get_current_head(),)


def _migration(
    connection: Connection, module: str, versions: Path
) -> tuple[ScriptDirectory, MigrationContext]:
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(versions), version_locations=[str(versions)])
    head = scripts.get_current_head()
    if head is None:
        raise FileNotFoundError(f"{versions} holds no migrations")
    context = MigrationContext.configure(
        connection,
        opts={
            "version_table": f"angarium_{module}_version",
            # Alembic has no public function for this; its own command uses the same one.
            "fn": lambda current, _: scripts._upgrade_revs(head, current),
        },
    )
    return scripts, context


# Rows


async def insert_once(
    connection: AsyncConnection, table: Table, rows: Sequence[Mapping[str, Any]]
) -> int:
    """Insert the rows whose primary key does not exist yet; returns their number.

    Any other violated constraint is an error, because the row would be lost silently.
    """
    if not rows:
        return 0
    key = [column.key for column in table.primary_key]
    names = rows[0].keys()
    if not key or not names >= set(key):
        raise ValueError(f"rows for {table.name} need their primary key to be safe to send twice")
    # SQLAlchemy uses the columns of the first row and ignores further columns of other rows.
    if any(row.keys() != names for row in rows):
        raise ValueError(f"rows for {table.name} differ in their columns")
    # Sorted by key, so that two processes that insert the same rows can't deadlock, and so that
    # neighbours share a page of the index.
    ordered = sorted(rows, key=itemgetter(*key))
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects import sqlite

        once = sqlite.insert(table).on_conflict_do_nothing(index_elements=key)
        options = {"preserve_rowcount": True}
        return (await connection.execute(once, ordered, execution_options=options)).rowcount
    from sqlalchemy import Integer, literal_column
    from sqlalchemy.dialects import postgresql

    # The driver does not count rows in executemany. RETURNING does, and is faster.

    counted = postgresql.insert(table).on_conflict_do_nothing(index_elements=key)
    result = await connection.execute(counted.returning(literal_column("1", Integer)), ordered)
    return len(result.all())
