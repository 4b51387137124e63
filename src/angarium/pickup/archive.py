"""Archived messages in the database. SQLite and PostgreSQL have the same tables.

Only the persister of a partition writes its rows. Each transaction checks the term of the
persister's lease, so a persister that was paused past its lease stores nothing. Redis knows whether
an archived message was sent or removed; the database does not. Rows of removed messages are deleted
later. One database may hold several keyspaces; the column `keyspace` separates them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from angarium.pickup.model import StoredMessage
from angarium.runtime.database.database import Database, insert_once
from angarium.runtime.database.identity import open_database
from angarium.runtime.errors import LeaseLost
from angarium.runtime.runtime import Runtime

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.ext.asyncio import AsyncConnection

VERSIONS = Path(__file__).parent / "versions"
# Databases limit the parameters of a statement; older SQLite versions to 999.
IDS_PER_STATEMENT = 500


def _tables() -> tuple[Table, Table, Table]:
    import sqlalchemy as sa

    metadata = sa.MetaData()
    message = sa.Table(
        "pickup_message",
        metadata,
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("keyspace", sa.String),
        sa.Column("queue", sa.Text),
        sa.Column("sequence", sa.BigInteger),
        sa.Column("received_ms", sa.BigInteger),
        sa.Column("dids", sa.Text),
        sa.Column("bytes", sa.BigInteger),
        sa.Column("payload", sa.LargeBinary),
    )
    recipient = sa.Table(
        "pickup_recipient",
        metadata,
        sa.Column("message_id", sa.String, primary_key=True),
        sa.Column("did", sa.Text, primary_key=True),
        sa.Column("keyspace", sa.String),
        sa.Column("queue", sa.Text),
        sa.Column("sequence", sa.BigInteger),
    )
    persister = sa.Table(
        "pickup_persister",
        metadata,
        sa.Column("keyspace", sa.String, primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("term", sa.BigInteger),
    )
    return message, recipient, persister


def record_bytes(message: StoredMessage) -> int:
    """The size that Redis counts for the message."""
    header = f"{message.sequence} {message.received_ms} {message.dids}\n"
    return len(header.encode()) + len(message.payload)


class MessageArchive:
    def __init__(self, database: Database, prefix: str) -> None:
        self._database = database
        self._prefix = prefix
        self._message, self._recipient, self._persister = _tables()

    @classmethod
    async def of(cls, runtime: Runtime) -> MessageArchive:
        """In the installation's database; any other is refused."""
        return await cls._migrated(await open_database(runtime), runtime.settings.prefix)

    @classmethod
    async def open(cls, url: str, prefix: str) -> MessageArchive:
        return await cls._migrated(await Database.open(url), prefix)

    @classmethod
    async def _migrated(cls, database: Database, prefix: str) -> MessageArchive:
        try:
            await database.migrate("pickup", VERSIONS)
        except BaseException:
            await database.close()
            raise
        return cls(database, prefix)

    async def close(self) -> None:
        await self._database.close()

    # Writing, by the persister

    async def fence(self, partition: int, term: int) -> int:
        """Prevent persisters of older terms from storing. Call it before the first move of a term.

        Returns the newest term that the database has seen. If that is greater than `term`, Redis
        lost its data and began to count terms from one.
        """
        import sqlalchemy as sa

        async with self._database.begin() as connection:
            try:
                await self._check_term(connection, partition, term)
            except LeaseLost:
                table = self._persister
                query = sa.select(table.c.term).where(*self._of_partition(partition))
                return await self._scalar(connection, query)
        return term

    async def store(
        self, partition: int, term: int, messages: Mapping[str, Sequence[StoredMessage]]
    ) -> None:
        """Store all messages or none. Rows that exist already stay unchanged."""
        rows, recipients = [], []
        for queue, found in messages.items():
            for each in found:
                place = {"keyspace": self._prefix, "queue": queue, "sequence": each.sequence}
                rows.append(
                    {
                        "id": each.id,
                        **place,
                        "received_ms": each.received_ms,
                        "dids": each.dids,
                        "bytes": record_bytes(each),
                        "payload": each.payload,
                    }
                )
                for did in dict.fromkeys(each.dids.split()):
                    recipients.append({"message_id": each.id, "did": did, **place})
        async with self._database.begin() as connection:
            await self._check_term(connection, partition, term)
            await insert_once(connection, self._message, rows)
            await insert_once(connection, self._recipient, recipients)

    async def delete(self, partition: int, term: int, ids: Sequence[str]) -> None:
        """Delete rows under the term: a newer persister may be about to store the same ids."""
        async with self._database.begin() as connection:
            await self._check_term(connection, partition, term)
            for some in _chunks(ids):
                recipient, message = self._recipient, self._message
                await connection.execute(recipient.delete().where(recipient.c.message_id.in_(some)))
                await connection.execute(message.delete().where(message.c.id.in_(some)))

    async def counts(self) -> list[tuple[str, int, int]]:
        """Name, messages and bytes of each queue of this keyspace."""
        import sqlalchemy as sa

        table = self._message
        query = (
            sa.select(table.c.queue, sa.func.count(), sa.func.sum(table.c.bytes))
            .where(table.c.keyspace == self._prefix)
            .group_by(table.c.queue)
        )
        async with self._database.connect() as connection:
            found = (await connection.execute(query)).all()
        return [(queue, count, int(size)) for queue, count, size in found]

    async def totals(self) -> tuple[int, int]:
        """Messages and bytes of this keyspace. The database reads every row for it."""
        import sqlalchemy as sa

        table = self._message
        query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(table.c.bytes), 0))
        async with self._database.connect() as connection:
            row = (await connection.execute(query.where(table.c.keyspace == self._prefix))).one()
        return int(row[0]), int(row[1])

    async def queues(self, after: str, count: int) -> list[str]:
        """Names of queues with rows, sorted, greater than `after`."""
        import sqlalchemy as sa

        table = self._message
        query = (
            sa.select(table.c.queue)
            .where(table.c.keyspace == self._prefix, table.c.queue > after)
            .group_by(table.c.queue)
            .order_by(table.c.queue)
            .limit(count)
        )
        async with self._database.connect() as connection:
            return list((await connection.scalars(query)).all())

    async def _check_term(self, connection: AsyncConnection, partition: int, term: int) -> None:
        table = self._persister
        row = {"keyspace": self._prefix, "partition": partition, "term": 0}
        await insert_once(connection, table, [row])
        updated = await connection.execute(
            table.update()
            .where(*self._of_partition(partition), table.c.term <= term)
            .values(term=term)
        )
        if updated.rowcount != 1:
            raise LeaseLost(f"a newer persister than term {term} moves partition {partition}")

    def _of_partition(self, partition: int) -> tuple[Any, Any]:
        table = self._persister
        return table.c.keyspace == self._prefix, table.c.partition == partition

    # Reading

    async def page(
        self, queue: str, did: str, after: int, rows_max: int
    ) -> list[tuple[str, int, int]]:
        """Id, sequence and payload bytes of rows with a sequence above `after`, oldest first."""
        import sqlalchemy as sa

        message, recipient = self._message, self._recipient
        size = sa.func.length(message.c.payload)
        query = sa.select(message.c.id, message.c.sequence, size)
        table = message
        if did:
            query = query.join(recipient, recipient.c.message_id == message.c.id)
            query = query.where(recipient.c.did == did)
            table = recipient
        query = query.where(*self._of_queue(table, queue), table.c.sequence > after)
        query = query.order_by(table.c.sequence).limit(rows_max)
        async with self._database.connect() as connection:
            return [(row[0], row[1], row[2]) for row in await connection.execute(query)]

    async def received_before(self, time_ms: int, rows_max: int) -> list[tuple[str, str]]:
        """Queue and id of messages that arrived before the time, oldest first."""
        import sqlalchemy as sa

        table = self._message
        query = (
            sa.select(table.c.queue, table.c.id)
            .where(table.c.keyspace == self._prefix, table.c.received_ms < time_ms)
            .order_by(table.c.received_ms)
            .limit(rows_max)
        )
        async with self._database.connect() as connection:
            return [(row[0], row[1]) for row in await connection.execute(query)]

    async def load(self, ids: Sequence[str]) -> list[StoredMessage]:
        """The messages with these ids, in order of arrival."""
        import sqlalchemy as sa

        table = self._message
        columns = (table.c.id, table.c.sequence, table.c.received_ms, table.c.dids, table.c.payload)
        found: list[StoredMessage] = []
        async with self._database.connect() as connection:
            for some in _chunks(ids):
                rows = await connection.execute(sa.select(*columns).where(table.c.id.in_(some)))
                found += [StoredMessage(*row[:4], bytes(row[4])) for row in rows]
        return sorted(found, key=lambda each: each.sequence)

    async def sizes(self, queue: str, ids: Sequence[str]) -> list[tuple[str, int]]:
        """Id and size, as Redis counts it, of those ids that have a row in this queue."""
        import sqlalchemy as sa

        table = self._message
        found: list[tuple[str, int]] = []
        async with self._database.connect() as connection:
            for some in _chunks(ids):
                query = sa.select(table.c.id, table.c.bytes).where(
                    *self._of_queue(table, queue), table.c.id.in_(some)
                )
                found += [(row[0], row[1]) for row in await connection.execute(query)]
        return found

    async def count(self, queue: str, did: str, without: Iterable[str]) -> int:
        """Rows of a recipient, except those with ids in `without`."""
        import sqlalchemy as sa

        table = self._recipient
        of_recipient = (*self._of_queue(table, queue), table.c.did == did)
        async with self._database.connect() as connection:
            total = await self._scalar(connection, sa.select(sa.func.count()).where(*of_recipient))
            for some in _chunks(list(without)):
                excluded = (*of_recipient, table.c.message_id.in_(some))
                query = sa.select(sa.func.count()).where(*excluded)
                total -= await self._scalar(connection, query)
        return total

    def _of_queue(self, table: Table, queue: str) -> tuple[Any, Any]:
        return table.c.keyspace == self._prefix, table.c.queue == queue

    async def _scalar(self, connection: AsyncConnection, query: Any) -> int:
        return int((await connection.execute(query)).scalar_one())


def _chunks(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    for start in range(0, len(ids), IDS_PER_STATEMENT):
        yield ids[start : start + IDS_PER_STATEMENT]
