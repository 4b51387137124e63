"""Migrations, on SQLite and PostgreSQL alike: run once, whole, and never backwards."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from angarium.runtime.errors import SettingInvalid
from tests.kit.roles import RoleProcess
from tests.runtime.notes import (
    ADD_LABEL,
    CREATE_NOTES,
    NOTES,
    note,
    opened,
    owners,
    scalar,
    store,
    with_notes,
    write_versions,
)

# Far less than a migration waits for another process.
MIGRATION_DEADLINE_S = 30


async def test_a_database_is_migrated_from_nothing_and_a_second_time_changes_nothing(
    url: str, versions: Path
) -> None:
    async with opened(url) as database:
        await database.migrate("sample", versions)
        await store(database, note("anna", label="first"))
        await database.migrate("sample", versions)
        assert await owners(database) == ["anna"]
        assert await scalar(database, "SELECT version_num FROM angarium_sample_version") == "0002"


async def test_tables_that_are_up_to_date_are_opened_while_another_process_writes(
    sqlite_url: str, versions: Path
) -> None:
    script = (
        "import signal, sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('BEGIN EXCLUSIVE')\n"
        "print('locked', flush=True)\n"
        "signal.pause()\n"
    )
    path = sqlite_url.removeprefix("sqlite:///")
    async with with_notes(sqlite_url, versions):
        pass
    with RoleProcess(["-c", script, path], ready_lines=0) as writer:
        await asyncio.to_thread(writer.wait_line, lambda line: line == "locked")
        async with asyncio.timeout(MIGRATION_DEADLINE_S), opened(sqlite_url) as database:
            await database.migrate("sample", versions)
            assert await owners(database) == []


async def test_new_revisions_are_added_to_tables_that_hold_rows(url: str, tmp_path: Path) -> None:
    folder = write_versions(tmp_path / "versions", CREATE_NOTES)
    async with opened(url) as database:
        await database.migrate("sample", folder)
        async with database.begin() as connection:
            columns = [NOTES.c.id, NOTES.c.owner, NOTES.c.body]
            old = sa.insert(sa.table("sample_note", *(sa.column(c.name, c.type) for c in columns)))
            await connection.execute(old, note("anna"))
        write_versions(folder, CREATE_NOTES, ADD_LABEL)
        await database.migrate("sample", folder)
        await store(database, note("bob", label="b"))
        assert await owners(database) == ["anna", "bob"]


async def test_modules_are_migrated_apart(url: str, versions: Path, tmp_path: Path) -> None:
    create = 'op.create_table("other", sa.Column("n", sa.Integer))'
    other = write_versions(tmp_path / "other", create)
    async with opened(url) as database:
        await database.migrate("sample", versions)
        await database.migrate("other", other)
        assert await scalar(database, "SELECT version_num FROM angarium_sample_version") == "0002"
        assert await scalar(database, "SELECT version_num FROM angarium_other_version") == "0001"


async def test_a_migration_that_fails_leaves_nothing_behind(url: str, tmp_path: Path) -> None:
    folder = write_versions(tmp_path / "versions", CREATE_NOTES, 'op.execute("SELECT nonsense")')
    async with opened(url) as database:
        with pytest.raises(sa.exc.DBAPIError, match="nonsense"):
            await database.migrate("sample", folder)
        async with database.connect() as connection:
            tables = await connection.run_sync(lambda sync: sa.inspect(sync).get_table_names())
        assert tables == []
        # And it can be tried again once it is mended.
        await database.migrate("sample", write_versions(folder, CREATE_NOTES, ADD_LABEL))
        assert await store(database, note()) == 1


async def test_a_migration_that_orphans_rows_is_undone(sqlite_url: str, tmp_path: Path) -> None:
    parent = 'op.execute("CREATE TABLE parent (n INTEGER PRIMARY KEY)")'
    child = 'op.execute("CREATE TABLE child (n INTEGER REFERENCES parent (n))")'
    rows = 'op.execute("INSERT INTO child VALUES (7)")'
    folder = write_versions(tmp_path / "versions", parent, child, rows)
    async with opened(sqlite_url) as database:
        with pytest.raises(Exception, match="orphans rows"):
            await database.migrate("sample", folder)
        assert await scalar(database, "SELECT count(*) FROM sqlite_master") == 0


MIGRATE = """
import asyncio, sys
from pathlib import Path
from angarium.runtime.database.database import Database

async def main(url: str) -> None:
    database = await Database.open(url)
    await database.migrate("sample", Path(sys.argv[1]))
    await database.close()

import alembic.op, sqlalchemy.ext.asyncio
for url in sys.argv[2:]:
    print("ready", flush=True)
    sys.stdin.readline()
    asyncio.run(main(url))
"""


def test_processes_that_migrate_at_once_do_it_once(
    sqlite_url: str, postgres_url: str, versions: Path
) -> None:
    urls = [sqlite_url, postgres_url]
    command = [sys.executable, "-c", MIGRATE, str(versions), *urls]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1)
        for _ in range(2)
    ]
    for _ in urls:
        ready = [process.stdout.readline() for process in processes if process.stdout]
        for process in processes:
            if process.poll() is None and process.stdin:
                process.stdin.write("go\n")
    answers = [process.communicate(timeout=30) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], answers
    assert ready == ["ready\n"] * 2


async def test_tasks_that_migrate_at_once_do_it_once(
    url: str, versions: Path, tmp_path: Path
) -> None:
    elsewhere = f"sqlite:///{tmp_path}/elsewhere.db"
    async with opened(url) as one, opened(url) as other, opened(elsewhere) as another:
        async with asyncio.TaskGroup() as tasks:
            for database in (one, other, another):
                tasks.create_task(database.migrate("sample", versions))
        await store(one, note("anna"))
        assert await owners(other) == ["anna"]
        assert await owners(another) == []


async def test_tables_of_a_newer_version_are_refused_and_left_alone(
    url: str, versions: Path
) -> None:
    async with with_notes(url, versions) as database:
        (versions / "v0002.py").unlink()
        with pytest.raises(SettingInvalid, match="tables of sample are at 0002"):
            await database.migrate("sample", versions)
        assert await scalar(database, "SELECT version_num FROM angarium_sample_version") == "0002"


async def test_a_folder_without_migrations_is_no_success(sqlite_url: str, tmp_path: Path) -> None:
    async with opened(sqlite_url) as database:
        with pytest.raises(FileNotFoundError):
            await database.migrate("sample", tmp_path)
        with pytest.raises(ValueError, match="table's name"):
            await database.migrate('x"; DROP TABLE y', tmp_path)
