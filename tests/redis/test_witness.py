"""redis-py, with its parser in Python, as a witness: both clients get the same replies.

Each has a database of its own on one server and sends the same commands in the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from redis._parsers import _RESP2Parser
from redis.connection import Connection as RedisPyConnection
from redis.exceptions import ResponseError

from angarium.redis.blocking import BlockingRedis
from angarium.redis.client import Redis
from angarium.redis.commands import Command
from angarium.redis.connection import ReplyError
from angarium.redis.options import RedisOptions
from tests.kit.server import ServerProcess
from tests.redis.witness_commands import COMMANDS

WitnessConnection: Any = RedisPyConnection  # it has no types
# Codes that redis-py takes off the text when it has a class for them.
CODES = ("ERR ", "NOSCRIPT ", "EXECABORT ", "NOPERM ", "READONLY ")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server


def plain(reply: Any) -> Any:
    """Types and values; of an error its text."""
    if isinstance(reply, ReplyError | ResponseError):
        text = str(reply)
        for code in CODES:
            text = text.removeprefix(code)
        return ("error", text)
    if isinstance(reply, list):
        return [plain(each) for each in reply]
    return (type(reply).__name__, reply)


def witnessed(server: ServerProcess, commands: Sequence[Command]) -> list[Any]:
    connection: Any = WitnessConnection(
        host="127.0.0.1",
        port=server.port,
        db=1,
        client_name="angarium",
        protocol=2,
        parser_class=_RESP2Parser,
    )
    replies: list[Any] = []
    try:
        for command in commands:
            connection.send_command(*command)
            try:
                replies.append(connection.read_response())
            except ResponseError as error:
                replies.append(error)
    finally:
        connection.disconnect()
    return replies


def differences(ours: Sequence[Any], theirs: Sequence[Any]) -> list[str]:
    return [
        f"{command!r:.80}: {mine!r:.120} is not {other!r:.120}"
        for command, mine, other in zip(COMMANDS, map(plain, ours), map(plain, theirs), strict=True)
        if mine != other
    ]


def test_the_table_is_long() -> None:
    assert len(COMMANDS) >= 200
    assert len({command[0] for command in COMMANDS}) > 100


async def test_both_clients_get_the_same_replies(server: ServerProcess) -> None:
    """In one connection: the table has a transaction, which does not end with one pipeline."""
    options = RedisOptions(f"redis://127.0.0.1:{server.port}/2")
    async with Redis(options) as redis:
        ours = await redis.execute(COMMANDS, key=None, repeatable=False)
        assert redis.unmatched == 0
    assert differences(ours, witnessed(server, COMMANDS)) == []
    kinds = {kind for kind, _ in map(_kind, ours)}
    assert kinds == {"bytes", "int", "list", "NoneType", "error"}


def _kind(reply: Any) -> tuple[str, Any]:
    found = plain(reply)
    return found if isinstance(found, tuple) else ("list", found)


def test_the_client_without_a_loop_gets_the_same_one_by_one(server: ServerProcess) -> None:
    """As a user without an event loop would: a call for each, an error of Redis raised."""
    alone = [
        command
        for command in COMMANDS
        if command[0] not in ("MULTI", "EXEC", "DISCARD", "SELECT") and "in-a-" not in str(command)
    ]
    theirs = witnessed(server, alone)
    with BlockingRedis(RedisOptions(f"redis://127.0.0.1:{server.port}/3")) as redis:
        for command, other in itertools.zip_longest(alone, theirs):
            try:
                mine = plain(redis.call(*command))
            except Exception as error:
                mine = plain(error.__cause__)
            assert mine == plain(other), command
