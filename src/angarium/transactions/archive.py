"""The SQL archive of ended transactions: the archiver writes it, status requests read it.

A row is stored once, however often it is sent. A failure to store is an error. The database is
opened on first use, so a process that never reads the archive needs no database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from angarium.runtime.database.database import Database, insert_once
from angarium.transactions.model import Transaction, TransactionStatus

MIGRATIONS = Path(__file__).parent / "migrations"

TABLE = sa.Table(
    "angarium_transactions",
    sa.MetaData(),
    sa.Column("id", sa.String(200), primary_key=True),
    sa.Column("owner", sa.String(128)),
    sa.Column("external_id", sa.String(256)),
    sa.Column("pipeline", sa.String(128)),
    sa.Column("version", sa.BigInteger),
    sa.Column("status", sa.String(20)),
    sa.Column("created_ms", sa.BigInteger),
    sa.Column("completed_ms", sa.BigInteger),
    sa.Column("state", sa.LargeBinary),
)
_decoder = msgspec.json.Decoder(Transaction)


class TransactionArchive:
    def __init__(self, database_url: str) -> None:
        self._url = database_url
        self._database: Database | None = None
        self._opening = asyncio.Lock()

    async def store(self, transactions: Sequence[Transaction]) -> int:
        """Returns after the commit, with the number of rows that were new."""
        database = await self.open()
        async with database.begin() as connection:
            return await insert_once(connection, TABLE, [_row(each) for each in transactions])

    async def remove_older(self, completed_ms: int, count: int) -> int:
        """Remove up to `count` transactions that completed before this time; how many it were."""
        database = await self.open()
        old = sa.select(TABLE.c.id).where(TABLE.c.completed_ms < completed_ms).limit(count)
        async with database.begin() as connection:
            found = await connection.execute(
                sa.delete(TABLE).where(TABLE.c.id.in_(old.scalar_subquery()))
            )
            return int(found.rowcount)

    async def find(self, transaction_id: str) -> Transaction | None:
        found = await self._select(sa.select(TABLE.c.state).where(TABLE.c.id == transaction_id))
        return found[0] if found else None

    async def find_by_external_id(self, owner: str, external_id: str) -> Transaction | None:
        """The newest one, because an externalId may be used again after its period."""
        query = (
            sa.select(TABLE.c.state)
            .where(TABLE.c.owner == owner, TABLE.c.external_id == external_id)
            .order_by(TABLE.c.created_ms.desc())
            .limit(1)
        )
        found = await self._select(query)
        return found[0] if found else None

    async def page(
        self,
        status: TransactionStatus,
        count: int,
        *,
        pipeline: str = "",
        owner: str = "",
        before: tuple[int, str] | None = None,
    ) -> list[Transaction]:
        """Last completed first, starting after the completion time and id `before`."""
        query = sa.select(TABLE.c.state).where(TABLE.c.status == status.value)
        if pipeline:
            query = query.where(TABLE.c.pipeline == pipeline)
        if owner:
            query = query.where(TABLE.c.owner == owner)
        if before is not None:
            query = query.where(sa.tuple_(TABLE.c.completed_ms, TABLE.c.id) < before)
        order = (TABLE.c.completed_ms.desc(), TABLE.c.id.desc())
        return await self._select(query.order_by(*order).limit(count))

    async def open(self) -> Database:
        async with self._opening:
            if self._database is None:
                database = await Database.open(self._url)
                try:
                    await database.migrate("transactions", MIGRATIONS)
                except BaseException:
                    await database.close()
                    raise
                self._database = database
            return self._database

    async def close(self) -> None:
        if self._database is not None:
            await self._database.close()
            self._database = None

    async def _select(self, query: Any) -> list[Transaction]:
        database = await self.open()
        async with database.connect() as connection:
            return [_decoder.decode(state) for state in (await connection.scalars(query)).all()]


def _row(transaction: Transaction) -> dict[str, str | int | bytes | None]:
    return {
        "id": transaction.id,
        "owner": transaction.owner,
        "external_id": transaction.external_id,
        "pipeline": transaction.pipeline,
        "version": transaction.version,
        "status": transaction.status.value,
        "created_ms": transaction.created_ms,
        "completed_ms": transaction.completed_ms or transaction.updated_ms,
        "state": msgspec.json.encode(transaction),
    }
