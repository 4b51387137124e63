"""Two roles in one process, as far as they use the database: a gateway, an archiver and an API.

The writers store when they are asked to; the API's handles on the same file only read. A second
process looks as `angarium pickup show` and `angarium transactions show` do: it opens, counts,
closes.
"""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection
from typing import NamedTuple

import msgspec

from angarium.pickup.archive import MessageArchive
from angarium.pickup.model import StoredMessage
from angarium.transactions.archive import TransactionArchive
from angarium.transactions.model import Transaction, TransactionStatus

PREFIX = "f62:"
QUEUE = "default:c1"
TERM = 1
ROWS_MAX = 1_000_000


class Counts(NamedTuple):
    messages: int
    transactions: int


def run_roles(url: str, pipe: Connection) -> None:
    asyncio.run(_roles(url, pipe))


def run_looker(url: str, pipe: Connection) -> None:
    """Answers each question with what it finds, through handles of its own."""
    while pipe.recv():
        pipe.send(asyncio.run(_look(url)))


async def _look(url: str) -> Counts:
    pickup = await MessageArchive.open(url, PREFIX)
    transactions = TransactionArchive(url)
    try:
        return await _count(pickup, transactions)
    finally:
        await pickup.close()
        await transactions.close()


async def _count(pickup: MessageArchive, transactions: TransactionArchive) -> Counts:
    rows = await pickup.page(QUEUE, "", 0, ROWS_MAX)
    found = await transactions.page(TransactionStatus.SUCCESS, ROWS_MAX)
    assert len({each.id for each in found}) == len(found)
    return Counts(len(rows), len(found))


async def _roles(url: str, pipe: Connection) -> None:
    gateway = await MessageArchive.open(url, PREFIX)
    archiver = TransactionArchive(url)
    await archiver.open()
    # The API opens the file when it is asked first, while the others are at work.
    api: tuple[MessageArchive, TransactionArchive] | None = None
    while True:
        command, first, count = await asyncio.to_thread(pipe.recv)
        if command == "store":
            numbers = range(first, first + count)
            await gateway.store(0, TERM, {QUEUE: [_message(each) for each in numbers]})
            await archiver.store([_transaction(each) for each in numbers])
            pipe.send(None)
        else:
            if api is None:
                api = await MessageArchive.open(url, PREFIX), TransactionArchive(url)
            pipe.send(await _count(*api))


def _message(number: int) -> StoredMessage:
    return StoredMessage(f"message-{number}", number + 1, 1, "did:example:anna", b"{}")


def _transaction(number: int) -> Transaction:
    nothing = msgspec.Raw(b"null")
    return Transaction(
        id=f"transaction-{number}",
        status=TransactionStatus.SUCCESS,
        owner="anna",
        pipeline="pay",
        version=1,
        node_group="default",
        created_ms=1,
        updated_ms=1,
        data=nothing,
        metadata=nothing,
        progress=nothing,
        output=nothing,
    )
