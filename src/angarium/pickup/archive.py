"""Messages that wait long, in the database: SQLite or PostgreSQL, the same tables.

A row is written by the persister of its partition only, under a term that is checked in the same
transaction: a persister that was paused past its lease stores nothing. Whether a message was sent
or removed is not known here; that is Redis' to say, and rows of removed messages are deleted
later. Rows of several keyspaces live side by side, told apart by their prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from angarium.pickup.model import Message
from angarium.runtime.database import Database, insert_once
from angarium.runtime.errors import LeaseLost

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.ext.asyncio import AsyncConnection

VERSIONS = Path(__file__).parent / "versions"
# Databases limit the number of parameters of a statement; SQLite's older default is 999.
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


def record_bytes(message: Message) -> int:
    """The size of the message as Redis counted it."""
    header = f"{message.sequence} {message.received_ms} {message.dids}\n"
    return len(header.encode()) + len(message.payload)


class Archive:
    def __init__(self, database: Database, prefix: str) -> None:
        self._database = database
        self._prefix = prefix
        self._message, self._recipient, self._persister = _tables()

    @classmethod
    async def open(cls, url: str, prefix: str) -> Archive:
        database = await Database.open(url)
        try:
            await database.migrate("pickup", VERSIONS)
        except BaseException:
            await database.close()
            raise
        return cls(database, prefix)

    async def close(self) -> None:
        await self._database.close()

    # The persister's side

    async def fence(self, partition: int, term: int) -> int:
        """From now on no older term stores anything. Called before the first move of a term.

        Answers the newest term that was ever here; one greater than ours means that Redis began
        to count anew.
        """
        import sqlalchemy as sa

        async with self._database.begin() as connection:
            try:
                await self._check_term(connection, partition, term)
            except LeaseLost:
                table = self._persister
                query = sa.select(table.c.term).where(*self._place(partition))
                return await self._scalar(connection, query)
        return term

    async def store(
        self, partition: int, term: int, messages: Mapping[str, Sequence[Message]]
    ) -> None:
        """All of them, on disk, or nothing; those that are there already stay as they are."""
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
        """Rows of removed messages. An older term could delete what a newer has yet to store."""
        async with self._database.begin() as connection:
            await self._check_term(connection, partition, term)
            for some in _portions(ids):
                recipient, message = self._recipient, self._message
                await connection.execute(recipient.delete().where(recipient.c.message_id.in_(some)))
                await connection.execute(message.delete().where(message.c.id.in_(some)))

    async def figures(self) -> list[tuple[str, int, int]]:
        """Queue, messages and bytes of everything this keyspace has here."""
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
        """Messages and bytes of everything this keyspace has here. Each is looked at once."""
        import sqlalchemy as sa

        table = self._message
        query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(table.c.bytes), 0))
        async with self._database.connect() as connection:
            row = (await connection.execute(query.where(table.c.keyspace == self._prefix))).one()
        return int(row[0]), int(row[1])

    async def queues(self, after: str, count: int) -> list[str]:
        """Queues that have messages here, by name, from behind `after`."""
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
        place = {"keyspace": self._prefix, "partition": partition}
        await insert_once(connection, table, [{**place, "term": 0}])
        updated = await connection.execute(
            table.update().where(*self._place(partition), table.c.term <= term).values(term=term)
        )
        if updated.rowcount != 1:
            raise LeaseLost(f"a newer persister than term {term} moves partition {partition}")

    def _place(self, partition: int) -> tuple[Any, Any]:
        table = self._persister
        return table.c.keyspace == self._prefix, table.c.partition == partition

    # The readers' side

    async def page(
        self, queue: str, did: str, after: int, rows_max: int
    ) -> list[tuple[str, int, int]]:
        """Id, sequence and payload bytes of rows behind `after`, oldest first."""
        import sqlalchemy as sa

        message, recipient = self._message, self._recipient
        size = sa.func.length(message.c.payload)
        query = sa.select(message.c.id, message.c.sequence, size)
        if did:
            query = query.join(recipient, recipient.c.message_id == message.c.id)
            place = recipient
            query = query.where(recipient.c.did == did)
        else:
            place = message
        query = query.where(*self._of(place, queue), place.c.sequence > after)
        query = query.order_by(place.c.sequence).limit(rows_max)
        async with self._database.connect() as connection:
            return [(row[0], row[1], row[2]) for row in await connection.execute(query)]

    async def load(self, ids: Sequence[str]) -> list[Message]:
        """The messages of some ids, in the order of arrival."""
        import sqlalchemy as sa

        table = self._message
        columns = (table.c.id, table.c.sequence, table.c.received_ms, table.c.dids, table.c.payload)
        found: list[Message] = []
        async with self._database.connect() as connection:
            for some in _portions(ids):
                rows = await connection.execute(sa.select(*columns).where(table.c.id.in_(some)))
                found += [Message(*row[:4], bytes(row[4])) for row in rows]
        return sorted(found, key=lambda each: each.sequence)

    async def sizes(self, queue: str, ids: Sequence[str]) -> list[tuple[str, int]]:
        """Those of the ids that this queue has here, with their size as Redis counted it."""
        import sqlalchemy as sa

        table = self._message
        found: list[tuple[str, int]] = []
        async with self._database.connect() as connection:
            for some in _portions(ids):
                query = sa.select(table.c.id, table.c.bytes).where(
                    *self._of(table, queue), table.c.id.in_(some)
                )
                found += [(row[0], row[1]) for row in await connection.execute(query)]
        return found

    async def ids(self, queue: str, did: str, rows_max: int, after: int) -> list[tuple[str, int]]:
        """Id and sequence of rows of a recipient, or of all."""
        return [(row[0], row[1]) for row in await self.page(queue, did, after, rows_max)]

    async def count(self, queue: str, did: str, without: Iterable[str]) -> int:
        """Rows of a recipient, leaving out those that were sent or removed."""
        import sqlalchemy as sa

        table = self._recipient
        ours = (*self._of(table, queue), table.c.did == did)
        async with self._database.connect() as connection:
            total = await self._scalar(connection, sa.select(sa.func.count()).where(*ours))
            for some in _portions(list(without)):
                query = sa.select(sa.func.count()).where(*ours, table.c.message_id.in_(some))
                total -= await self._scalar(connection, query)
        return total

    def _of(self, table: Table, queue: str) -> tuple[Any, Any]:
        return table.c.keyspace == self._prefix, table.c.queue == queue

    async def _scalar(self, connection: AsyncConnection, query: Any) -> int:
        return int((await connection.execute(query)).scalar_one())


def _portions(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    for start in range(0, len(ids), IDS_PER_STATEMENT):
        yield ids[start : start + IDS_PER_STATEMENT]
