"""The SQL database under pickup's offline queue and the transactions' archive.

One `Database` stands for an SQLite file or a PostgreSQL database and hides the difference: a
write transaction is committed to disk when its block has ended (`begin`), a read can't write
(`connect`), a batch may be sent twice (`insert_once`), and each module's tables are brought up to
date under a lock (`migrate`). What the database could not do is DatabaseUnavailable, never a
success; only a COMMIT whose answer was lost is OutcomeUnknown. Nothing here knows a module's
tables. SQLAlchemy and Alembic are imported when a database is opened, not with this module.
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

from angarium.runtime.database_backend import FORMS, SETTING, Backend
from angarium.runtime.database_postgres import open_postgres
from angarium.runtime.database_sqlite import forget, open_sqlite
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

# How long one statement, a wait for SQLite's write lock, or a wait for a free connection may
# take: longer than any healthy batch, short enough that a caller's retry still helps.
CALL_TIMEOUT_MS = 30_000
# PostgreSQL allows 100 by default and several processes of ours share it.
CONNECTIONS_MAX = 8
POLL_S = 0.01

_MODULE_NAME = re.compile(r"[a-z][a-z_]{0,39}")

# Alembic keeps the migration that is running in a module of its own (`alembic.op`), so one
# process can run one at a time, whatever loop or database it is for.
_ALEMBIC = threading.Lock()


class Database:
    """An open database, for the event loop that opened it. Close it when all its users are done.

    Handles on one SQLite file share its connections, and the last one to be closed closes them.
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
        """Connect once. SettingInvalid if the URL can't be right, DatabaseUnavailable otherwise."""
        scheme, separator, _ = url.partition("://")
        if separator and scheme == "sqlite":
            return cls(await open_sqlite(url, call_timeout_ms, connections_max))
        if separator and scheme in ("postgresql", "postgres"):
            return cls(await open_postgres(url, call_timeout_ms, connections_max))
        # The URL may hold a password, so it is never repeated.
        raise SettingInvalid(SETTING, "is neither an sqlite nor a postgresql URL", FORMS)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """A write transaction: on disk when the block has ended, undone by any error in it."""
        async with self._transaction(self._backend.engines.writer) as connection:
            yield connection

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        """For reading. A write is refused: without a commit it would look like a success."""
        async with self._checked_out(self._backend.engines.reader) as connection:
            yield connection

    async def migrate(self, module: str, versions: Path) -> None:
        """Bring the module's tables up to the newest revision in its folder: all of it or nothing.

        Tables that are up to date are only read: nobody waits for a writer to open a database.
        SQLite checks foreign keys once at the end, so that a table may be rebuilt.
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
                # A refused COMMIT left nothing behind; one that was cut off may have arrived.
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
    """Polls, because the next in line may live in another loop or thread."""
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
        problem = f"the tables of {module} are at {', '.join(newer)}, which this version can't know"
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
            # Alembic has no public name for "the steps up to here"; its own command uses this.
            "fn": lambda current, _: scripts._upgrade_revs(head, current),
        },
    )
    return scripts, context


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
