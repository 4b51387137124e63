"""The database, on SQLite and PostgreSQL alike: what is stored, refused, recovered."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from angarium.runtime.database.database import Database, insert_once
from angarium.runtime.errors import DatabaseUnavailable, OutcomeUnknown, SettingInvalid
from tests.kit.eventually import eventually
from tests.kit.ports import free_port
from tests.kit.postgres import PostgresProcess
from tests.kit.proxy import FaultProxy
from tests.runtime.notes import (
    NOTES,
    note,
    opened,
    owners,
    scalar,
    store,
    with_notes,
)

# Transactions


async def test_an_error_in_the_block_undoes_all_of_it(url: str, versions: Path) -> None:
    async with with_notes(url, versions) as database:

        async def fail_after_writing() -> None:
            async with database.begin() as connection:
                await insert_once(connection, NOTES, [note("anna"), note("bob")])
                raise KeyError("a mistake of the caller")

        with pytest.raises(KeyError):
            await fail_after_writing()
        assert await owners(database) == []


async def test_what_is_written_is_unseen_until_the_block_has_ended(
    url: str, versions: Path
) -> None:
    async with with_notes(url, versions) as database:
        async with database.begin() as connection:
            await insert_once(connection, NOTES, [note("anna")])
            assert await owners(database) == []
        assert await owners(database) == ["anna"]


async def test_a_connection_for_reading_can_not_write(url: str, versions: Path) -> None:
    async with with_notes(url, versions, connections_max=1) as database:
        with pytest.raises(DatabaseUnavailable):
            async with database.connect() as connection:
                await insert_once(connection, NOTES, [note()])
        # On PostgreSQL this is the same connection again.
        assert await store(database, note("anna")) == 1
        assert await owners(database) == ["anna"]


async def test_after_a_failure_calls_under_way_end_and_all_connections_are_new(
    sqlite_url: str, versions: Path
) -> None:
    async with with_notes(sqlite_url, versions) as database:
        async with database.connect() as reading:
            await reading.execute(sa.select(NOTES.c.owner))
            with pytest.raises(DatabaseUnavailable):
                async with database.connect() as connection:
                    await insert_once(connection, NOTES, [note()])
            # It does not wait for the reader for ever, and the reader is left alone.
            assert await store(database, note("anna")) == 1
            await reading.execute(sa.select(NOTES.c.owner))
            before = database._backend.engines.reader.pool
        assert await owners(database) == ["anna"]
        assert database._backend.engines.reader.pool is not before
        assert await store(database, note("bob")) == 1


async def test_a_cancelled_transaction_leaves_nothing_and_hinders_nobody(
    url: str, versions: Path
) -> None:
    async with with_notes(url, versions) as database:
        begun = asyncio.Event()

        async def endless() -> None:
            async with database.begin() as connection:
                begun.set()
                while True:
                    await insert_once(connection, NOTES, [note("nobody") for _ in range(200)])

        task = asyncio.create_task(endless())
        await begun.wait()
        # Waits in line behind the endless one where there is one writer.
        waiting = asyncio.create_task(store(database, note("anna")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await waiting == 1
        assert await owners(database) == ["anna"]


async def test_writers_of_one_process_wait_for_each_other(url: str, versions: Path) -> None:
    async with with_notes(url, versions) as database:

        async def write(owner: str) -> None:
            for _ in range(5):
                assert await store(database, note(owner)) == 1

        async with asyncio.TaskGroup() as tasks:
            for number in range(12):
                tasks.create_task(write(str(number)))
        assert len(await owners(database)) == 60


# Rows that are sent twice


async def test_rows_sent_twice_are_stored_once(url: str, versions: Path) -> None:
    rows = [note(f"owner {number}") for number in range(2_500)]
    async with with_notes(url, versions) as database:
        assert await store(database, *rows) == 2_500
        assert await store(database, *rows) == 0
        assert await store(database, note("late"), *rows[:3]) == 1
        assert await store(database, *[note("twin")] * 2) == 1
        assert await store(database) == 0
        assert len(await owners(database)) == 2_502


async def test_a_row_stored_before_is_not_changed_by_its_second_sending(
    url: str, versions: Path
) -> None:
    first = note("anna")
    async with with_notes(url, versions) as database:
        await store(database, first)
        assert await store(database, first | {"owner": "eve"}) == 0
        assert await owners(database) == ["anna"]


@pytest.mark.parametrize("fault", [{"owner": None}, {"label": "taken"}])
async def test_only_the_key_makes_a_row_the_same(
    url: str, versions: Path, fault: dict[str, object]
) -> None:
    async with with_notes(url, versions) as database:
        await store(database, note("anna", label="taken"))
        rows = [note("bob", label="free"), note("eve", label="also free") | fault]
        with pytest.raises(sa.exc.IntegrityError):
            await store(database, *rows)
        assert await owners(database) == ["anna"]


async def test_rows_that_would_lose_a_column_are_refused(sqlite_url: str, versions: Path) -> None:
    async with with_notes(sqlite_url, versions) as database:
        with pytest.raises(ValueError, match="differ in their columns"):
            await store(database, note(), note(label="would be dropped"))
        with pytest.raises(ValueError, match="primary key"):
            await store(database, {"owner": "anna", "body": b""})
        assert await owners(database) == []


async def test_the_same_rows_from_many_sides_in_any_order_are_stored_once(
    url: str, versions: Path
) -> None:
    rows = [note(str(number)) for number in range(300)]
    async with with_notes(url, versions) as one, opened(url) as other:
        new: list[int] = []

        async def send(database: Database, batch: list[dict[str, object]]) -> None:
            new.append(await store(database, *batch))

        async with asyncio.TaskGroup() as tasks:
            for database in (one, other):
                for batch in (rows, rows[::-1], rows[150:] + rows[:150]):
                    tasks.create_task(send(database, batch))
        assert sum(new) == 300
        assert len(await owners(one)) == 300


async def test_two_who_store_the_same_rows_in_opposite_orders_do_not_deadlock(
    postgres: PostgresProcess, postgres_url: str, versions: Path
) -> None:
    waiting = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    first, last = note("first"), note("last")
    async with with_notes(postgres_url, versions) as database:
        async with database.begin() as connection:
            await insert_once(connection, NOTES, [first])
            other = asyncio.create_task(store(database, last, first))
            await eventually(lambda: postgres.execute(waiting, postgres_url) == "1")
            # Had the other one stored its rows as they came, it would hold this one by now.
            assert await insert_once(connection, NOTES, [last]) == 1
        assert await other == 0


async def test_an_error_does_not_repeat_the_payload(url: str, versions: Path) -> None:
    async with with_notes(url, versions) as database:
        row = note(body=b"the secret", label="the secret") | {"owner": None}
        with pytest.raises(sa.exc.IntegrityError) as caught:
            await store(database, row)
        error: BaseException | None = caught.value
        while error is not None:
            assert "secret" not in str(error)
            assert b"the secret".hex() not in str(error)
            error = error.__cause__


# Refused writes, lost servers


async def test_a_full_disk_is_an_error_and_what_was_stored_stays(
    sqlite_url: str, versions: Path
) -> None:
    async with with_notes(sqlite_url, versions) as database:
        await store(database, note("anna"))
        async with database.begin() as connection:
            pages = (await connection.exec_driver_sql("PRAGMA page_count")).scalar()
            await connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
        with pytest.raises(DatabaseUnavailable, match="full"):
            await store(database, *[note("bob", body=b"x" * 4096) for _ in range(50)])
        assert await owners(database) == ["anna"]
        async with database.begin() as connection:
            await connection.exec_driver_sql("PRAGMA max_page_count=1000000")
        assert await store(database, *[note("bob", body=b"x" * 4096) for _ in range(50)]) == 50


REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON sample_note FOR EACH ROW EXECUTE FUNCTION refuse();
"""


async def test_a_server_without_space_is_an_error(
    postgres: PostgresProcess, postgres_url: str, versions: Path
) -> None:
    async with with_notes(postgres_url, versions) as database:
        postgres.execute(REFUSE, postgres_url)
        with pytest.raises(DatabaseUnavailable, match="no space left"):
            await store(database, note())
        postgres.execute("DROP TRIGGER refuse ON sample_note", postgres_url)
        assert await store(database, note()) == 1


async def test_a_server_that_only_reads_is_an_error(
    postgres: PostgresProcess, postgres_url: str, versions: Path
) -> None:
    async with with_notes(postgres_url, versions):
        name = postgres_url.rpartition("/")[2]
        postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    async with opened(postgres_url) as database:
        with pytest.raises(DatabaseUnavailable, match="read-only"):
            await store(database, note())


CUT = """
CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER cut AFTER INSERT ON sample_note DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION cut();
"""


async def test_a_commit_that_is_not_answered_has_an_unknown_outcome(
    postgres: PostgresProcess, postgres_url: str, versions: Path
) -> None:
    async with with_notes(postgres_url, versions) as database:
        postgres.execute(CUT, postgres_url)
        with pytest.raises(OutcomeUnknown):
            await store(database, note())
        postgres.execute("DROP TRIGGER cut ON sample_note", postgres_url)
        assert await store(database, note()) == 1


async def test_a_killed_server_is_an_error_until_it_is_back(
    postgres: PostgresProcess, postgres_url: str, versions: Path
) -> None:
    async with with_notes(postgres_url, versions) as database:
        await store(database, note("anna"))

        async def write_while_it_dies() -> None:
            async with database.begin() as connection:
                await insert_once(connection, NOTES, [note("nobody")])
                postgres.kill()
                await insert_once(connection, NOTES, [note("nobody")])

        with pytest.raises(DatabaseUnavailable):
            await write_while_it_dies()
        with pytest.raises(DatabaseUnavailable):
            await store(database, note("nobody"))
        with pytest.raises(DatabaseUnavailable):
            await owners(database)
        with pytest.raises(DatabaseUnavailable, match="can't be reached"):
            await Database.open(postgres_url)
        postgres.restart()
        assert await store(database, note("bob")) == 1
        assert await owners(database) == ["anna", "bob"]


async def test_connections_that_died_while_idle_are_replaced_unnoticed(
    postgres: PostgresProcess, postgres_url: str, versions: Path
) -> None:
    async with with_notes(postgres_url, versions) as database:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(store(database, note()))
        postgres.kill()
        postgres.restart()
        for _ in range(6):
            assert await store(database, note()) == 1


async def test_a_call_that_takes_too_long_is_an_error_and_the_next_one_works(
    postgres_url: str,
) -> None:
    async with opened(postgres_url, call_timeout_ms=200) as database:
        with pytest.raises(DatabaseUnavailable):
            await scalar(database, "SELECT pg_sleep(30)")
        assert await scalar(database, "SELECT 1") == 1


async def test_a_connection_whose_first_statement_is_too_slow_is_closed(
    postgres: PostgresProcess, postgres_url: str
) -> None:
    async with FaultProxy("127.0.0.1", postgres.port) as proxy:
        url = postgres_url.replace(f":{postgres.port}/", f":{proxy.port}/")
        async with opened(url, call_timeout_ms=300) as database:
            proxy.delay(0.25)  # connecting has a longer limit than a statement
            for _ in range(3):
                with pytest.raises(DatabaseUnavailable):
                    await scalar(database, "SELECT 1")
            proxy.delay(0)
            assert await scalar(database, "SELECT 1") == 1
            await eventually(lambda: proxy.open_connections == 1)


async def test_waiting_for_a_free_connection_ends_with_an_error(url: str) -> None:
    async with opened(url, call_timeout_ms=100, connections_max=1) as database:
        async with database.begin():
            with pytest.raises(DatabaseUnavailable, match="busy"):
                async with database.begin():
                    pass
        async with database.begin() as connection:
            assert (await connection.exec_driver_sql("SELECT 1")).scalar() == 1


async def test_another_process_that_keeps_the_file_locked_is_an_error(
    sqlite_url: str, versions: Path
) -> None:
    async with with_notes(sqlite_url, versions, call_timeout_ms=100) as database:
        path = sqlite_url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(DatabaseUnavailable, match="locked"):
                await store(database, note("bob"))
            # Readers are not held up by a writer.
            assert await owners(database) == []
            other.execute("ROLLBACK")
        assert await store(database, note("anna")) == 1


WRITE_AND_HANG = """
import asyncio, sys
from angarium.runtime.database.database import Database

async def main() -> None:
    database = await Database.open(sys.argv[1])
    for owner in ("stored", "cut off"):
        async with database.begin() as connection:
            await connection.exec_driver_sql(
                "INSERT INTO sample_note (id, owner, body) "
                f"VALUES (lower(hex(randomblob(16))), '{owner}', '')"
            )
            if owner == "cut off":
                print("writing", flush=True)
                await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_writer_killed_halfway_loses_what_it_had_not_committed_and_nothing_else(
    sqlite_url: str, versions: Path
) -> None:
    async with with_notes(sqlite_url, versions) as database:
        command = [sys.executable, "-c", WRITE_AND_HANG, sqlite_url]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert await asyncio.to_thread(writer.stdout.readline) == b"writing\n"
            writer.kill()
        assert await owners(database) == ["stored"]
        assert await store(database, note("anna")) == 1


async def test_a_closed_database_says_so(url: str) -> None:
    database = await Database.open(url)
    await database.close()
    await database.close()
    with pytest.raises(DatabaseUnavailable, match="closed"):
        async with database.connect():
            pass


# What a stored row stands on


async def test_sqlite_syncs_each_commit_and_checks_references(sqlite_url: str) -> None:
    expected = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    async with opened(sqlite_url) as database:
        for transaction in (database.begin, database.connect):
            async with transaction() as connection:
                for name, value in expected.items():
                    answer = await connection.exec_driver_sql(f"PRAGMA {name}")
                    assert answer.scalar() == value
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_postgresql_waits_for_the_disk_even_where_its_default_is_not_to(
    postgres: PostgresProcess, postgres_url: str
) -> None:
    name = postgres_url.rpartition("/")[2]
    postgres.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    async with opened(postgres_url) as database, database.begin() as connection:
        answer = await connection.exec_driver_sql("SHOW synchronous_commit")
        assert answer.scalar() == "on"


# Opening


@pytest.mark.parametrize(
    "url",
    [
        "",
        "notes.db",
        "mysql://anna:hunter2@localhost/notes",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite://notes.db",
        "sqlite:///notes.db?mode=ro",
        "postgresql+psycopg://anna:hunter2@localhost/notes",
        "postgresql://anna:hunter2@localhost:port/notes",
        "postgresql://anna:hunter2@localhost:99999/notes",
        "postgresql://anna:hunter2@[::1/notes",
        "postgresql://anna:hunter2@localhost/notes?sslmode=perhaps",
    ],
)
async def test_a_malformed_url_names_the_setting_and_keeps_its_password(url: str) -> None:
    with pytest.raises(SettingInvalid, match="ANGARIUM_DATABASE_URL") as caught:
        await Database.open(url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.fix


async def test_a_path_that_can_not_be_a_database_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "letter.txt"
    text.write_text("Dear Sir or Madam, " * 100)
    for path in (text, text / "notes.db", tmp_path):
        with pytest.raises(SettingInvalid, match=path.name):
            await Database.open(f"sqlite:///{path}")
    assert text.read_text() == "Dear Sir or Madam, " * 100


async def test_opening_waits_for_another_who_has_the_file_to_himself(sqlite_url: str) -> None:
    path = sqlite_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        with pytest.raises(DatabaseUnavailable, match="locked"):
            await Database.open(sqlite_url, call_timeout_ms=200)
        assert time.monotonic() - began >= 0.2
        other.execute("ROLLBACK")
    async with opened(sqlite_url) as database:
        assert await scalar(database, "SELECT 1") == 1


async def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    async with opened(f"sqlite:///{tmp_path}/home/data/notes.db") as database:
        assert await scalar(database, "SELECT 1") == 1


async def test_a_server_that_refuses_us_is_a_setting_and_one_that_is_down_is_not(
    postgres: PostgresProcess,
) -> None:
    wrong = postgres.url.replace(postgres.password, "hunter2")
    with pytest.raises(SettingInvalid, match="password") as caught:
        await Database.open(wrong)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(SettingInvalid, match="does not exist"):
        await Database.open(postgres.url_of("nowhere"))
    with pytest.raises(DatabaseUnavailable, match="can't be reached"):
        await Database.open(f"postgresql://anna:hunter2@127.0.0.1:{free_port()}/notes")


async def test_a_server_that_speaks_another_protocol_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            stranger, _ = listener.accept()
            with stranger:
                stranger.recv(100)
                stranger.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises((DatabaseUnavailable, SettingInvalid)):
            await Database.open(f"postgresql://a:b@127.0.0.1:{listener.getsockname()[1]}/notes")
        thread.join()


async def test_a_missing_driver_is_named_with_its_fix(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(SettingInvalid, match="asyncpg") as caught:
        await Database.open(postgres_url)
    assert caught.value.fix == "pip install 'angarium[postgres]'"


def test_importing_the_module_imports_no_sqlalchemy() -> None:
    code = (
        "import sys, angarium.runtime.database.database\n"
        "print({'sqlalchemy', 'alembic', 'aiosqlite', 'asyncpg'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "set()\n"
