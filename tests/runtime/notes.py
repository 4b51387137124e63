"""A module with one table, for the tests of the database."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from angarium.runtime.database.database import Database, insert_once
from angarium.runtime.ids import time_ordered_id

NOTES = sa.Table(
    "sample_note",
    sa.MetaData(),
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("label", sa.Text, unique=True),
)

CREATE_NOTES = """
    op.create_table(
        "sample_note",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
"""
ADD_LABEL = """
    with op.batch_alter_table("sample_note") as table:
        table.add_column(sa.Column("label", sa.Text))
        table.create_unique_constraint("sample_note_label", ["label"])
"""


def write_versions(folder: Path, *upgrades: str) -> Path:
    """A folder of revisions 0001, 0002, …, each with the given statements."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, upgrade in enumerate(upgrades, start=1):
        before = f'"{number - 1:04}"' if number > 1 else "None"
        (folder / f"v{number:04}.py").write_text(
            "import sqlalchemy as sa\nfrom alembic import op\n\n"
            f'revision = "{number:04}"\ndown_revision = {before}\n\n\n'
            f"def upgrade() -> None:\n    {textwrap.indent(upgrade.strip(), '')}\n"
        )
    return folder


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Database]:
    database = await Database.open(url, **options)
    try:
        yield database
    finally:
        await database.close()


@asynccontextmanager
async def with_notes(url: str, versions: Path, **options: Any) -> AsyncIterator[Database]:
    async with opened(url, **options) as database:
        await database.migrate("sample", versions)
        yield database


def note(owner: str = "anna", **columns: object) -> dict[str, object]:
    return {"id": time_ordered_id(), "owner": owner, "body": b"...", **columns}


async def store(database: Database, *rows: Mapping[str, object]) -> int:
    async with database.begin() as connection:
        return await insert_once(connection, NOTES, rows)


async def owners(database: Database) -> list[str]:
    async with database.connect() as connection:
        rows = await connection.execute(sa.select(NOTES.c.owner).order_by(NOTES.c.id))
        return list(rows.scalars())


async def scalar(database: Database, sql: str) -> Any:
    async with database.connect() as connection:
        return (await connection.exec_driver_sql(sql)).scalar()
