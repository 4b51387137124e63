"""Databases to test on: SQLite and PostgreSQL alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.postgres import PostgresProcess
from tests.runtime.notes import (
    ADD_LABEL,
    CREATE_NOTES,
    write_versions,
)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresProcess]:
    with PostgresProcess() as server:
        yield server


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/notes.db"


@pytest.fixture
def postgres_url(postgres: PostgresProcess) -> str:
    return postgres.new_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    name = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(name))


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    return write_versions(tmp_path / "versions", CREATE_NOTES, ADD_LABEL)
