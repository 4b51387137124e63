"""F62: a second opening of the SQLite file let another process delete the log in use."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from angarium.pickup.client import PickupClient
from angarium.runtime.database.database import Database
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.runtime.notes import (
    CREATE_NOTES,
    note,
    opened,
    owners,
    store,
    with_notes,
    write_versions,
)

DID = "did:example:anna"
DEADLINE_S = 30.0
LOOK = """
import asyncio, sys
from angarium.runtime.database.database import Database

async def main() -> None:
    database = await Database.open(sys.argv[1])
    async with database.connect() as connection:
        found = await connection.exec_driver_sql("SELECT count(*) FROM sample_note")
        print(found.scalar())
    await database.close()

asyncio.run(main())
"""
# Every way in which Python opens a file raises the event "open"; SQLite's own does not.
WATCH = """
import asyncio, os, sys
from angarium.runtime.database.database import Database

seen = []

def hook(event: str, args: tuple[object, ...]) -> None:
    if event == "open" and str(args[0]).startswith(sys.argv[2]):
        seen.append(args[0])

async def main() -> None:
    handles = [await Database.open(sys.argv[1])]
    sys.addaudithook(hook)
    for _ in range(3):
        handles.append(await Database.open(sys.argv[1]))
        async with handles[-1].begin() as connection:
            await connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS t (n)")
    for each in handles:
        await each.close()
    print(len(seen))

asyncio.run(main())
"""


def look(url: str) -> int:
    done = subprocess.run([sys.executable, "-c", LOOK, url], capture_output=True, check=True)
    return int(done.stdout)


def deleted_logs() -> list[str]:
    names = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            names.append(str(each.readlink()))
        except FileNotFoundError:
            continue
    return [name for name in names if "-wal" in name and name.endswith("(deleted)")]


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    return write_versions(tmp_path / "versions", CREATE_NOTES)


@asynccontextmanager
async def served(env: dict[str, str]) -> AsyncIterator[tuple[RoleProcess, PickupClient]]:
    async with RoleProcess(["serve", "api", "gateway"], env, ready_lines=2) as role:
        url = f"ws://127.0.0.1:{role.port_of('gateway', 'gateway')}/"
        async with PickupClient(url) as client:
            yield role, client


async def archived(role: RoleProcess) -> int:
    url = f"http://127.0.0.1:{role.port_of('api', 'http')}/v1/pickup"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200, await answer.text()
        return int((await answer.json())["archived"])


async def test_messages_archived_after_others_have_looked_survive_a_kill(
    redis_url: str, tmp_path: Path
) -> None:
    env = {
        "ANGARIUM_REDIS_URL": redis_url,
        "ANGARIUM_PREFIX": f"f{secrets.token_hex(3)}:",
        "ANGARIUM_HOME": str(tmp_path),
        "ANGARIUM_PICKUP__THRESHOLD_TIMESTAMP": "1",
        "ANGARIUM_PICKUP__LEASE_MS": "1000",
    }
    async with served(env) as (role, client):
        for number in range(3):
            await client.add_message("c1", [DID], number)

        async def all_archived(count: int) -> bool:
            return await archived(role) == count

        await eventually(lambda: all_archived(3), DEADLINE_S)
        with RoleProcess(["pickup", "show", "--json"], env, ready_lines=0) as command:
            assert await asyncio.to_thread(command.wait, DEADLINE_S) == 0
            assert json.loads(command.lines()[0])["archived"] == 3
        for number in range(3, 8):
            await client.add_message("c1", [DID], number)
        await eventually(lambda: all_archived(8), DEADLINE_S)
        role.kill()
    async with served(env) as (_, client):

        async def count() -> int:
            return await client.get_available_message_count("c1")

        assert await eventually(count, DEADLINE_S) == 8
        taken = await client.take_from_queue("c1", limit=20)
        assert [each.encrypted_message for each in taken] == list(range(8))


async def test_a_second_handle_keeps_the_locks_of_the_first(tmp_path: Path, versions: Path) -> None:
    url = f"sqlite:///{tmp_path}/notes.db"
    async with with_notes(url, versions) as first:
        await store(first, note("anna"))
        async with opened(url) as second:
            assert await owners(second) == ["anna"]
        assert await asyncio.to_thread(look, url) == 1
        assert deleted_logs() == []
        await store(first, note("bob"))
        assert await asyncio.to_thread(look, url) == 2


async def test_a_handle_of_another_loop_keeps_the_locks_of_the_first(
    tmp_path: Path, versions: Path
) -> None:
    url = f"sqlite:///{tmp_path}/notes.db"

    async def elsewhere() -> list[str]:
        async with opened(url) as database:
            return await owners(database)

    async with with_notes(url, versions) as first:
        await store(first, note("anna"))
        assert await asyncio.to_thread(asyncio.run, elsewhere()) == ["anna"]
        assert await asyncio.to_thread(look, url) == 1
        assert deleted_logs() == []
        await store(first, note("bob"))
        assert await asyncio.to_thread(look, url) == 2


def test_nothing_but_sqlite_opens_a_file_that_exists(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    command = [sys.executable, "-c", WATCH, f"sqlite:///{path}", str(path)]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout == b"0\n"


async def test_handles_on_one_file_share_their_connections(tmp_path: Path, versions: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "notes.db")
    async with (
        with_notes(f"sqlite:///{tmp_path}/notes.db", versions) as first,
        opened(f"sqlite:///{tmp_path}/link.db") as second,
    ):
        assert first._backend is second._backend
        await first.close()
        assert await store(second, note("anna")) == 1
        async with opened(f"sqlite:///{tmp_path}/notes.db") as third:
            assert third._backend is second._backend
            assert await owners(third) == ["anna"]


async def test_a_file_closed_by_all_its_users_is_opened_anew(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/notes.db"
    first = await Database.open(url)
    await first.close()
    async with opened(url) as second:
        assert second._backend is not first._backend


async def test_processes_that_create_the_file_at_once_all_use_it(
    tmp_path: Path, versions: Path
) -> None:
    url = f"sqlite:///{tmp_path}/new/folder/notes.db"
    script = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from tests.runtime.notes import note, store, with_notes\n"
        "async def main():\n"
        "    async with with_notes(sys.argv[1], Path(sys.argv[2])) as database:\n"
        "        await store(database, note())\n"
        "asyncio.run(main())\n"
    )
    commands = [["-c", script, url, str(versions)]] * 6
    roles = [RoleProcess(each, ready_lines=0) for each in commands]
    try:
        for role in roles:
            role.__enter__()
        codes = [await asyncio.to_thread(role.wait, DEADLINE_S) for role in roles]
        assert codes == [0] * 6, [role.stderr()[-3:] for role in roles]
    finally:
        for role in roles:
            role.close()
    assert await asyncio.to_thread(look, url) == 6


@pytest.mark.parametrize("mask", [0o000, 0o077])
async def test_the_log_and_the_index_are_as_private_as_the_file(
    tmp_path: Path, versions: Path, mask: int
) -> None:
    before = os.umask(mask)
    try:
        async with with_notes(f"sqlite:///{tmp_path}/home/notes.db", versions) as database:
            await store(database, note("anna"))
            modes = {
                each.name: stat.S_IMODE(each.stat().st_mode)
                for each in (tmp_path / "home").iterdir()
            }
    finally:
        os.umask(before)
    assert modes == {"notes.db": 0o600, "notes.db-wal": 0o600, "notes.db-shm": 0o600}
