"""What can't be sent is refused by name, and what would upset a connection reaches nobody else."""

from __future__ import annotations

import asyncio
import enum
import multiprocessing
import os
import secrets
import subprocess
import sys
from array import array
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.redis import commands as module
from angarium.redis.blocking import BlockingRedis
from angarium.redis.client import Redis
from angarium.redis.commands import INTEGER_MAX, pack_commands
from angarium.redis.errors import AngariumError, CommandInvalid, OutcomeUnknown
from angarium.redis.options import RedisOptions
from tests.kit.eventually import eventually
from tests.kit.server import ServerProcess
from tests.redis.model import as_bytes
from tests.redis.scripted import Answer, Words, scripted

SECRET = "pass\udce9word"
REFUSED = {
    "half a pair": SECRET,
    "None": None,
    "bool": True,
    "list": [SECRET],
    "dict": {SECRET: 1},
    "Decimal": Decimal("1.5"),
    "bytearray": bytearray(b"pass"),
    "a view": memoryview(b"password"),
    "a view with gaps": memoryview(b"p-a-s-s-")[::2],
    "an array": array("i", [1]),
    "an object": object(),
    "more digits than Python prints": 10**5_000,
    "as many below zero": -(10**5_000),
    "just too large": INTEGER_MAX,
    "an integer of another kind": enum.IntEnum("Kind", "ONE").ONE,  # type: ignore[attr-defined]
}


class Name(enum.StrEnum):
    ECHO = "ECHO"


@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("what", REFUSED)
def test_the_argument_is_named_and_its_value_is_not(what: str, place: int) -> None:
    argument: Any = REFUSED[what]
    command = ["SET", "key", "value", "EX"]
    command[place] = argument
    with pytest.raises(CommandInvalid) as refused:
        pack_commands([("PING",), command])
    text = str(refused.value)
    name = "a command" if place == 0 else "SET"
    assert text.startswith(f"argument {place} of {name} ({type(argument).__name__})"), text
    shown = f"{text} {refused.value.__cause__!r}"
    for part in ("pass", "word", "dce9", "1000", "object at"):
        assert part not in shown
    assert refused.value.__suppress_context__, "a traceback would show the packer's own error"


@pytest.mark.parametrize("commands", [[], [()], [[]], ["PING"], [b"PING"], [("PING",), ()]])
def test_what_is_no_command_is_refused(commands: Any) -> None:
    with pytest.raises(CommandInvalid):
        pack_commands(commands)


@given(
    st.lists(
        st.one_of(
            st.text(st.characters(codec="utf-8")),
            st.binary(),
            st.integers(1 - INTEGER_MAX, INTEGER_MAX - 1),
            st.floats(),
        ),
        min_size=1,
    )
)
def test_what_can_be_sent_is_sent_as_it_is(command: list[Any]) -> None:
    packed = pack_commands([command])
    parts = [as_bytes(argument) for argument in command]
    expected = b"*%d\r\n" % len(parts)
    assert packed == expected + b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in parts)


def test_a_word_of_an_enumeration_is_its_text() -> None:
    assert pack_commands([(Name.ECHO, "a")]) == pack_commands([("ECHO", "a")])


def test_a_command_that_is_too_large_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "COMMAND_BYTES_MAX", 1_000)
    assert pack_commands([("SET", "a", "x" * 900)])
    for command in (("SET", "a", "x" * 1_000), ("x" * 1_000, "a")):
        with pytest.raises(CommandInvalid, match=r"too large: 10\d\d bytes") as refused:
            pack_commands([command])
        assert len(str(refused.value)) < 120
    assert str(refused.value).startswith("x" * 32 + " is too large")


async def test_a_digit_too_many_does_not_end_the_process(redis_url: str) -> None:
    """The packer in C ends a process that packs an integer which can't be printed."""
    program = (
        "import asyncio; from angarium.redis.client import Redis;"
        "from angarium.redis.options import RedisOptions\n"
        "async def main():\n"
        f"    async with Redis(RedisOptions({redis_url!r})) as redis:\n"
        "        try: await redis.call('ECHO', 10**5000)\n"
        "        except Exception as error: print(error)\n"
        "        print(await redis.call('ECHO', 'alive'))\n"
        "asyncio.run(main())"
    )
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.stdout.splitlines() == [
        "argument 1 of ECHO (int) has too many digits",
        "b'alive'",
    ], ended


# Commands that change the connection, on a real server -------------------------------------------


@pytest.fixture(scope="module")
def small_server() -> Iterator[ServerProcess]:
    with ServerProcess(config={"proto-max-bulk-len": "1mb"}) as server:
        yield server


UPSETTING: dict[str, tuple[Any, ...]] = {
    "two replies": ("SUBSCRIBE", "a", "b"),
    "a mode without ECHO": ("SUBSCRIBE", "a"),
    "replies without end": ("MONITOR",),
    "no replies": ("CLIENT", "REPLY", "OFF"),
    "one reply less": ("CLIENT", "REPLY", "SKIP"),
    "a transaction left open": ("MULTI",),
    "the end": ("QUIT",),
    "an argument that the server refuses": ("SET", "a", b"x" * 2_000_000),
}


@pytest.mark.parametrize("what", UPSETTING)
async def test_who_upsets_the_connection_gives_nobody_anothers_answer(
    small_server: ServerProcess, what: str
) -> None:
    options = RedisOptions(small_server.url, call_timeout_s=0.5)
    prefix = secrets.token_hex(4)
    async with Redis(options) as redis:

        async def ask(number: int) -> bool:
            value = f"{prefix}-{number}"
            try:
                (reply,) = await redis.execute([("ECHO", value)], key=None, repeatable=False)
            except OutcomeUnknown:
                return False
            assert reply == value.encode()
            return True

        async def upset() -> None:
            command = UPSETTING[what]
            try:
                await redis.execute([command], key=None, repeatable=False)
            except OutcomeUnknown:
                return

        await asyncio.gather(*map(ask, range(50)), upset(), *map(ask, range(50, 100)))
        await eventually(lambda: ask(100))
        assert all(await asyncio.gather(*map(ask, range(101, 200))))


# Many ------------------------------------------------------------------------------------------


async def test_a_pipeline_of_hundreds_of_which_some_are_refused_is_sent_in_part() -> None:
    """Each is answered once, in its place; what was answered is not sent again."""
    refused: dict[bytes, int] = {}

    def on_command(number: int, words: Words) -> Answer:
        if words[0] != b"GET" or int(words[1]) % 7 or refused.get(words[1], 0) >= 3:
            return None
        refused[words[1]] = refused.get(words[1], 0) + 1
        code = (b"LOADING", b"TRYAGAIN", b"MASTERDOWN")[int(words[1]) % 3]
        return b"-%b try again\r\n" % code

    async with scripted(on_command) as server, Redis(RedisOptions(server.url)) as redis:
        commands = [("GET", number) for number in range(1_000)]
        replies = await redis.execute(commands, key=None, repeatable=False)
        assert replies == [b"%d" % number for number in range(1_000)]
        sent = [words[1] for _, words in server.commands if words[0] == b"GET"]
        assert len(sent) == 1_000 + 3 * len(range(0, 1_000, 7))


async def test_a_flood_is_held_back_and_answered(redis_server: ServerProcess) -> None:
    """More than the kernel takes: callers wait before they send, and nothing is lost."""
    value = b"x" * 100_000
    async with Redis(RedisOptions(redis_server.url, call_timeout_s=60)) as redis:
        await redis.call("PING")
        with redis_server.paused():
            asking = [
                asyncio.create_task(redis.call("ECHO", b"%d-%b" % (number, value)))
                for number in range(500)
            ]
            node = await redis._topology.node_of(None)
            connection = await node.connection()
            await eventually(lambda: not connection.ready)
            # Who came when the connection was full waits, and is not in its memory.
            waiting = len(connection._in_flight)
            more = [asyncio.create_task(redis.call("ECHO", b"%d" % n)) for n in range(500)]
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(connection._in_flight) == waiting
        for number, reply in enumerate(await asyncio.gather(*asking)):
            assert reply == b"%d-%b" % (number, value)
        assert await asyncio.gather(*more) == [b"%d" % number for number in range(500)]


async def test_callers_that_give_up_leave_nothing_behind(redis_url: str) -> None:
    async with Redis(RedisOptions(redis_url)) as redis:
        connection = await (await redis._topology.node_of(None)).connection()
        for _ in range(200):
            asking = [asyncio.create_task(redis.call("ECHO", "x" * 500)) for _ in range(50)]
            await asyncio.sleep(0)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        assert await redis.call("ECHO", "mine") == b"mine"
        await eventually(lambda: not connection._in_flight and not connection._unverified)


async def test_a_busy_server_is_waited_for(redis_server: ServerProcess) -> None:
    """A script that runs for long: BUSY for everybody else, the fence included."""
    with ServerProcess(config={"busy-reply-threshold": "50"}) as server:
        options = RedisOptions(server.url, call_timeout_s=20, unavailable_timeout_s=20)
        async with Redis(options) as redis, Redis(options) as late:
            await redis.call("SET", "a", "1")
            running = asyncio.create_task(asyncio.to_thread(_run_for_long, server))
            await eventually(lambda: _is_busy(server))
            asking = [asyncio.create_task(each.call("GET", "a")) for each in (redis, late)]
            assert await asyncio.gather(*asking) == [b"1", b"1"]
            await running
            connection = await (await late._topology.node_of(None)).connection()
            assert connection._fence == "ECHO", (
                "connected to when it was busy, guarded all the same"
            )
            assert redis.unmatched == late.unmatched == 0


def _run_for_long(server: ServerProcess) -> None:
    server.ask("EVAL", "for i = 1, 60000000 do local x = i end", 0)


def _is_busy(server: ServerProcess) -> bool:
    try:
        server.ask("GET", "a")
    except Exception as error:
        return "busy" in str(error).lower()
    return False


# Processes and threads --------------------------------------------------------------------------


def _ask_in_child(redis: BlockingRedis, told: Any) -> None:
    try:
        told.put(redis.call("ECHO", "child"))
    except AngariumError as error:
        told.put(str(error))
    redis.close()


def test_a_client_that_came_over_a_fork_is_refused_and_its_maker_goes_on(redis_url: str) -> None:
    """Parent and child would read each other's replies from one socket."""
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    with BlockingRedis(RedisOptions(redis_url)) as redis:
        assert redis.call("ECHO", "before") == b"before"
        child = context.Process(target=_ask_in_child, args=(redis, told))
        child.start()
        child.join(30)
        assert "made before a fork" in told.get()
        assert child.exitcode == 0
        assert redis.call("ECHO", os.getpid()) == b"%d" % os.getpid()
