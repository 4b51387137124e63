"""F49: after a failure of the disk or of the server, a handle must work again without a restart."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from angarium.runtime.errors import DatabaseUnavailable, OutcomeUnknown
from tests.kit.postgres import PostgresProcess
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

NOBODY = 65534
# A user who may not write to the file for a moment: a wrong chmod, a file system that the system
# made read-only after an error. SQLite then opens the file for reading, and keeps it so.
READ_ONLY_FOR_A_MOMENT = """
import asyncio, os, sys
from pathlib import Path
from angarium.runtime.errors import DatabaseUnavailable
from tests.runtime.notes import note, opened, owners, store, with_notes

async def main(path: Path, versions: Path, user: int) -> None:
    async with with_notes(f"sqlite:///{path}", versions) as database:
        await store(database, note("anna"))  # all modules are loaded now
    if user != os.geteuid():
        os.chown(path.parent, user, -1)
        os.chown(path, user, -1)
        os.seteuid(user)
    async with opened(f"sqlite:///{path}") as database:
        path.chmod(0o400)
        for _ in range(3):
            try:
                await store(database, note("nobody"))
            except DatabaseUnavailable:
                continue
            raise SystemExit("it was stored in a file that can't be written")
        path.chmod(0o600)
        await store(database, note("bob"))
        print(await owners(database), flush=True)

asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
"""
# What a process may still write to a file: the first page of the log and no more.
FILE_TOO_LARGE = """
import asyncio, gc, os, resource, sys
from pathlib import Path
from angarium.runtime.errors import DatabaseUnavailable, OutcomeUnknown
from tests.runtime.notes import note, opened, owners, store, with_notes

def open_files(path: Path) -> list[str]:
    found = [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return [each.name for each in found if each.name.startswith(path.name)]

async def main(path: Path, versions: Path) -> None:
    gc.disable()
    async with with_notes(f"sqlite:///{path}", versions) as database:
        await store(database, note("anna"))
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
        for _ in range(3):
            try:
                # More than SQLite caches: the statement fails, and not only its COMMIT.
                await store(database, *(note("nobody", body=bytes(20_000)) for _ in range(300)))
            except (DatabaseUnavailable, OutcomeUnknown):
                continue
            raise SystemExit("it was stored in a file that can't grow")
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        await store(database, note("bob"))
        print(await owners(database), flush=True)
    print(open_files(path), flush=True)

asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
"""


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    return write_versions(tmp_path / "versions", CREATE_NOTES)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresProcess]:
    with PostgresProcess() as server:
        yield server


@contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this machine does not allow mounting")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return filler
    raise AssertionError("the disk took everything")


async def test_a_full_disk_is_an_error_until_there_is_space_again(
    tmp_path: Path, versions: Path
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        async with with_notes(f"sqlite:///{disk}/notes.db", versions) as database:
            await store(database, note("anna"))
            for turn in range(3):
                filler = fill(disk)
                for _ in range(3):
                    with pytest.raises((DatabaseUnavailable, OutcomeUnknown)):
                        await store(database, *(note("nobody") for _ in range(200)))
                    assert len(await owners(database)) == turn + 1
                filler.unlink()
                assert await store(database, note("bob")) == 1
            assert len(await owners(database)) == 4


async def test_a_full_disk_and_a_locked_file_at_once_end_with_their_causes(
    tmp_path: Path, versions: Path
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        path = disk / "notes.db"
        async with with_notes(f"sqlite:///{path}", versions, call_timeout_ms=100) as database:
            await store(database, note("anna"))
            # A second process: a descriptor closed in this one would drop the library's locks.
            script = (
                "import signal, sqlite3, sys\n"
                "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
                "connection.execute('BEGIN EXCLUSIVE')\n"
                "print('locked', flush=True)\n"
                "signal.pause()\n"
            )
            filler = fill(disk)
            with RoleProcess(["-c", script, str(path)], ready_lines=0) as other:
                await asyncio.to_thread(other.wait_line, lambda line: line == "locked")
                for _ in range(3):
                    with pytest.raises(DatabaseUnavailable):
                        await store(database, note("nobody"))
                other.kill()
            with pytest.raises((DatabaseUnavailable, OutcomeUnknown)):
                await store(database, *(note("nobody") for _ in range(200)))
            filler.unlink()
            assert await store(database, note("bob")) == 1
            assert await owners(database) == ["anna", "bob"]


def test_a_file_that_was_read_only_for_a_moment_is_written_again(versions: Path) -> None:
    user = os.geteuid() or NOBODY
    with TemporaryDirectory() as folder:
        command = ["-c", READ_ONLY_FOR_A_MOMENT, f"{folder}/notes.db", str(versions), str(user)]
        with RoleProcess(command, ready_lines=0) as process:
            assert process.wait(60) == 0, process.stderr()[-5:]
            assert process.lines() == ["['anna', 'bob']"]


def test_a_connection_that_failed_is_closed_before_garbage_is_collected(
    tmp_path: Path, versions: Path
) -> None:
    command = ["-c", FILE_TOO_LARGE, str(tmp_path / "notes.db"), str(versions)]
    with RoleProcess(command, ready_lines=0) as process:
        assert process.wait(60) == 0, process.stderr()[-5:]
        assert process.lines() == ["['anna', 'bob']", "[]"]


async def test_sessions_that_began_read_only_are_replaced(
    postgres: PostgresProcess, versions: Path
) -> None:
    """A server that was a replica for a moment: its sessions refuse writes for good."""
    url = postgres.new_database()
    name = url.rpartition("/")[2]
    async with with_notes(url, versions):
        pass
    postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    async with opened(url) as database:
        for _ in range(3):
            with pytest.raises(DatabaseUnavailable):
                await store(database, note("nobody"))
        postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
        # One more session may have begun while the server was read-only.
        with contextlib.suppress(DatabaseUnavailable):
            await store(database, note("anna"))
        assert await store(database, note("bob")) == 1
