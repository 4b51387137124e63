"""Replies that do not match: nobody gets another's data, everybody is told, and work goes on.

The server here is scripted, because no real one does this. In each test one connection misbehaves
among many callers, and the next connection is well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from angarium.redis.address import Address
from angarium.redis.client import Redis
from angarium.redis.connection import Credentials, ReplyError, open_connection
from angarium.redis.errors import AngariumError, OutcomeUnknown, RedisUnavailable
from angarium.redis.options import RedisOptions
from angarium.redis.subscription import ChannelBatch
from tests.kit.eventually import eventually
from tests.redis.scripted import Answer, Words, array, bulk, is_fence, scripted, usual

CALLERS = 50
CHOSEN = b"caller-25"


def options(url: str, **changes: Any) -> RedisOptions:
    return RedisOptions(url, **{"call_timeout_s": 2.0, "unavailable_timeout_s": 5.0, **changes})


async def ask(redis: Redis, number: int) -> Any:
    """One caller's own question, not to be repeated; its answer or its error."""
    value = f"caller-{number}"
    try:
        (reply,) = await redis.execute([("GET", value)], key=None, repeatable=False)
    except AngariumError as error:
        return error
    return reply


def once(fault: Callable[[Words], Answer]) -> Callable[[int, Words], Answer]:
    """The fault befalls the chosen caller's command, on the first connection."""

    def on_command(number: int, words: Words) -> Answer:
        return fault(words) if number == 0 and words[-1] == CHOSEN else None

    return on_command


FAULTS: dict[str, Callable[[Words], Answer]] = {
    "a reply is dropped": lambda words: b"",
    "a reply is added": lambda words: usual(words) + bulk(b"another's data"),
    "a reply is added before": lambda words: bulk(b"another's data") + usual(words),
    "an error is added": lambda words: usual(words) + b"-ERR another's trouble\r\n",
    "a push-like array is added": lambda words: usual(words) + array(bulk(b"message"), b":1\r\n"),
    "half a reply, then another": lambda words: b"$9\r\ncall" + bulk(b"another's data"),
    "a length that is too short": lambda words: b"$4\r\ncaller-25\r\n",
    "a length that is too long": lambda words: b"$40\r\ncaller-25\r\n",
    "bytes that are no RESP": lambda words: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "nothing but a line end": lambda words: b"\r\n",
    "a map with a list as key": lambda words: b"%1\r\n*0\r\n+a\r\n",
    "more elements than memory": lambda words: b"*9223372036854775807\r\n",
    "an attribute of RESP3": lambda words: b"|1\r\n+ttl\r\n:1\r\n" + usual(words),
}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_nobody_gets_anothers_data(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    async with (
        scripted(once(FAULTS[fault])) as server,
        Redis(options(server.url, call_timeout_s=0.5)) as redis,
    ):
        answers = await asyncio.gather(*(ask(redis, number) for number in range(CALLERS)))
        for number, answer in enumerate(answers):
            assert isinstance(answer, OutcomeUnknown) or answer == b"caller-%d" % number
        assert isinstance(answers[25], OutcomeUnknown), "its own reply can't be told from others"
        assert redis.unmatched == 1
        assert "unmatched_reply" in caplog.text
        assert await asyncio.gather(*(ask(redis, number) for number in range(CALLERS))) == [
            b"caller-%d" % number for number in range(CALLERS)
        ]
        assert server.connections == 2


async def test_a_reply_that_comes_after_its_fence_reaches_nobody() -> None:
    late: list[bytes] = []

    def on_command(number: int, words: Words) -> Answer:
        if number == 0 and words[-1] == CHOSEN:
            late.append(usual(words))
            return b""
        return usual(words) + late.pop() if late and is_fence(words) else None

    async with scripted(on_command) as server, Redis(options(server.url)) as redis:
        answers = await asyncio.gather(*(ask(redis, number) for number in range(CALLERS)))
        assert {type(answer) for answer in answers} == {OutcomeUnknown}
        assert redis.unmatched == 1
        assert await ask(redis, 1) == b"caller-1"


@pytest.mark.parametrize(
    "reply", [b"$-1\r\n", b":25\r\n", b"*0\r\n", b"-ERR no\r\n", b"$1\r\nx\r\n"]
)
async def test_a_wrong_reply_in_place_of_the_fence_closes(reply: bytes) -> None:
    def on_command(number: int, words: Words) -> Answer:
        return reply if number == 0 and is_fence(words) and words[1][17:] else None

    async with scripted(on_command) as server, Redis(options(server.url)) as redis:
        assert isinstance(await ask(redis, 1), OutcomeUnknown)
        assert redis.unmatched == 1
        assert await ask(redis, 1) == b"caller-1"


async def test_a_fence_of_another_connection_or_an_older_one_does_not_do() -> None:
    fences: list[bytes] = []

    def on_command(number: int, words: Words) -> Answer:
        if is_fence(words) and words[1][17:]:
            fences.append(words[1])
            return bulk(fences[0])
        return None

    async with scripted(on_command) as server, Redis(options(server.url)) as redis:
        assert await ask(redis, 1) == b"caller-1", "the first is its own"
        assert isinstance(await ask(redis, 2), OutcomeUnknown), "the second got the first's"
        assert isinstance(await ask(redis, 3), OutcomeUnknown), "and the next connection's, too"
        assert redis.unmatched == 2
        assert len(set(fences)) == 3, "no value was used twice"


async def test_repeatable_calls_are_repeated_and_right() -> None:
    async with scripted(once(lambda words: b"")) as server, Redis(options(server.url)) as redis:
        values = [f"caller-{number}" for number in range(CALLERS)]
        answers = await asyncio.gather(*(redis.call("GET", value) for value in values))
        assert answers == [value.encode() for value in values]
        assert redis.unmatched == 1


async def test_what_comes_unasked_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted() as server, Redis(options(server.url)) as redis:
        await redis.call("PING")
        server.push(bulk(b"another's data"))
        await eventually(lambda: redis.unmatched == 1)
        assert await ask(redis, 1) == b"caller-1"
    (record,) = [each for each in caplog.records if each.getMessage() == "unmatched_reply"]
    assert record.levelno == logging.ERROR
    assert record.server == f"127.0.0.1:{server.port}"  # type: ignore[attr-defined]
    assert "another's data" not in str(record.__dict__), "the log holds no data"


async def test_pushes_between_replies_are_not_replies() -> None:
    """RESP3 marks what is out of band, and so it is known."""
    push = b">2\r\n+invalidate\r\n*1\r\n$3\r\nkey\r\n"

    def on_command(number: int, words: Words) -> Answer:
        return push + usual(words) + push

    async with scripted(on_command) as server, Redis(options(server.url)) as redis:
        answers = await asyncio.gather(*(ask(redis, number) for number in range(CALLERS)))
        assert answers == [b"caller-%d" % number for number in range(CALLERS)]
        assert redis.unmatched == 0


async def test_an_error_inside_an_array_is_a_value_of_that_array() -> None:
    nested = array(b":1\r\n", b"-MOVED 1 elsewhere:1\r\n", array(b"-BUSY deep\r\n"))

    async with (
        scripted(once(lambda words: nested)) as server,
        Redis(options(server.url)) as redis,
    ):
        answers = await asyncio.gather(*(ask(redis, number) for number in range(CALLERS)))
        one, moved, (busy,) = answers.pop(25)
        assert one == 1
        assert isinstance(moved, ReplyError)
        assert isinstance(busy, ReplyError)
        assert answers == [b"caller-%d" % number for number in range(CALLERS) if number != 25]


@pytest.mark.parametrize("code", ["LOADING", "BUSY", "MASTERDOWN"])
async def test_a_server_that_refuses_the_fence_for_a_while_is_asked_again(code: str) -> None:
    """What was answered waits for the next fence; what was refused is told, and tried again."""
    refusals = 20

    def on_command(number: int, words: Words) -> Answer:
        nonlocal refusals
        if (is_fence(words) and not words[1][17:]) or words[0] == b"CLIENT":
            return None
        if words[-1] == b"caller-1" or refusals == 0:
            return None
        refusals -= 1
        return f"-{code} try later\r\n".encode()

    async with scripted(on_command) as server, Redis(options(server.url)) as redis:
        answers = await asyncio.gather(*(ask(redis, number) for number in range(1, 4)))
        assert answers == [b"caller-1", b"caller-2", b"caller-3"]
        assert (refusals, redis.unmatched, server.connections) == (0, 0, 1)
        asked = [words for _, words in server.commands if words[-1] == b"caller-1"]
        assert len(asked) == 1, "what was answered was not sent again"


async def test_an_error_with_data_in_it_waits_for_the_fence_like_any_reply() -> None:
    """Only a refusal is told while the fence is refused."""
    busy = True

    def on_command(number: int, words: Words) -> Answer:
        if is_fence(words) and words[1][17:] and busy:
            return b"-BUSY try later\r\n"
        return b"-ERR secret of caller-1\r\n" if words[-1] == b"caller-1" else None

    async with scripted(on_command) as server, Redis(options(server.url)) as redis:
        asking = asyncio.ensure_future(ask(redis, 1))
        await eventually(lambda: sum(is_fence(words) for _, words in server.commands) > 5)
        assert not asking.done()
        busy = False
        assert "secret" in str(await asking)


async def test_a_code_is_a_word_and_not_the_beginning_of_one() -> None:
    """A script's own error is none of the server's, though it begins like one."""
    for text in ("ASKED twice", "MOVEDON", "READONLYISH", "LOADINGS", "BUSYGROUP", "BUSYKEY x"):
        error = f"-{text}\r\n".encode()
        async with (
            scripted(lambda number, words: error if words[0] == b"GET" else None) as server,  # noqa: B023
            Redis(options(server.url)) as redis,
        ):
            answers = await asyncio.gather(*(ask(redis, number) for number in range(3)))
            assert [str(answer) for answer in answers] == [text] * 3
            assert server.connections == 1


# The handshake ------------------------------------------------------------------------------


async def test_a_handshake_answered_out_of_order_is_no_connection() -> None:
    def on_command(number: int, words: Words) -> Answer:
        return usual(words) * 2 if number == 0 and words[0] == b"CLIENT" else None

    async with scripted(on_command) as server, Redis(options(server.url)) as redis:
        assert await ask(redis, 1) == b"caller-1", "nothing had been sent, so it was sent again"
        assert redis.unmatched == 1
        assert server.connections == 2


@pytest.mark.parametrize(("refused", "used"), [((b"ECHO",), b"PING"), ((b"ECHO", b"PING"), None)])
async def test_who_may_not_echo_is_fenced_otherwise_or_told(
    refused: tuple[bytes, ...], used: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    def on_command(number: int, words: Words) -> Answer:
        return b"-NOPERM not for you\r\n" if words[0] in refused else None

    async with scripted(on_command) as server, Redis(options(server.url)) as redis:
        assert await ask(redis, 1) == b"caller-1"
        fences = {words[0] for _, words in server.commands if is_fence(words) and words[1][17:]}
        assert fences == ({used} if used else set())
        assert ("replies_unguarded" in caplog.text) == (used is None)


async def test_a_busy_server_is_no_connection_yet_instead_of_one_without_a_fence() -> None:
    def on_command(number: int, words: Words) -> Answer:
        return b"-BUSY running a script\r\n" if number < 2 else None

    async with scripted(on_command) as server, Redis(options(server.url)) as redis:
        assert await ask(redis, 1) == b"caller-1"
        assert server.connections == 3
        assert any(is_fence(words) and words[1][17:] for _, words in server.commands)


# Subscriptions ------------------------------------------------------------------------------


def subscribe_reply(words: Words) -> Answer:
    confirmed = [
        array(bulk(b"subscribe"), bulk(name), b":%d\r\n" % at)
        for at, name in enumerate(words[1:], 1)
    ]
    return b"".join(confirmed) if words[0] == b"SUBSCRIBE" else None


STRANGE_PUSHES = {
    "of another channel": array(bulk(b"message"), bulk(b"other"), bulk(b"another's data")),
    "of another kind": array(bulk(b"pmessage"), bulk(b"*"), bulk(b"a"), bulk(b"data")),
    "too short": array(bulk(b"message"), bulk(b"a")),
    "empty": array(),
    "no array": bulk(b"another's data"),
    "no RESP": b"?!\r\n",
    "null": b"*-1\r\n",
}


@pytest.mark.parametrize("push", STRANGE_PUSHES, ids=str)
async def test_a_strange_push_is_not_handed_out_and_leaves_a_gap(push: str) -> None:
    good = array(bulk(b"message"), bulk(b"a"), bulk(b"ours"))
    async with (
        scripted(lambda number, words: subscribe_reply(words)) as server,
        Redis(options(server.url)) as redis,
        redis.subscribe("a") as subscription,
    ):
        assert (await subscription.receive()).gap
        server.push(STRANGE_PUSHES[push])
        assert await subscription.receive() == ChannelBatch([], gap=True)
        assert redis.unmatched == 1
        server.push(good)
        assert [message.payload for message in (await subscription.receive()).messages] == [b"ours"]


async def test_a_subscription_whose_pushes_stop_is_opened_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection stands, and nothing comes: not even an answer to PING."""
    monkeypatch.setattr("angarium.redis.subscription.SILENCE_MAX_S", 0.2)

    def on_command(number: int, words: Words) -> Answer:
        if words[0] == b"PING" and len(words) == 1:
            return b"" if number == 0 else array(bulk(b"pong"), bulk(b""))
        return subscribe_reply(words)

    async with (
        scripted(on_command) as server,
        Redis(options(server.url)) as redis,
        redis.subscribe("a") as subscription,
    ):
        assert (await subscription.receive()).gap
        assert (await subscription.receive()).gap, "a second connection"
        pings = len(server.commands)
        await eventually(lambda: len(server.commands) > pings + 5)
        assert server.connections == 2, "one that answers PING stays"


# Closing ------------------------------------------------------------------------------------


async def test_a_connection_that_closes_while_a_fence_is_due_tells_all_who_wait() -> None:
    """Answered, but not yet guarded: the caller can't be given the answer."""

    def on_command(number: int, words: Words) -> Answer:
        return b"" if number == 0 and is_fence(words) and words[1][17:] else None

    async with scripted(on_command) as server, Redis(options(server.url)) as redis:
        asking = asyncio.ensure_future(ask(redis, 1))
        await eventually(lambda: any(words[1:] == [b"caller-1"] for _, words in server.commands))
        server._writers[0].close()
        assert isinstance(await asking, OutcomeUnknown)
        assert redis.unmatched == 0, "a lost connection is no wrong reply"
        assert await ask(redis, 1) == b"caller-1"


async def test_a_reply_that_never_ends_is_a_time_out() -> None:
    async with (
        scripted(once(lambda words: b"$1000000\r\ncaller")) as server,
        Redis(options(server.url, call_timeout_s=0.2)) as redis,
    ):
        answers = await asyncio.gather(*(ask(redis, number) for number in range(CALLERS)))
        assert {type(answer) for answer in answers} == {OutcomeUnknown}
        assert redis.unmatched == 0
        assert await ask(redis, 25) == CHOSEN


async def test_of_a_pipeline_that_ran_in_part_nobody_says_that_nothing_was_sent() -> None:
    def on_command(number: int, words: Words) -> Answer:
        return b"-LOADING always\r\n" if words[-1] == b"b" else None

    async with (
        scripted(on_command) as server,
        Redis(options(server.url, unavailable_timeout_s=0.1)) as redis,
    ):
        with pytest.raises(OutcomeUnknown, match="some of the commands have run"):
            await redis.execute([("SET", "x", "a"), ("GET", "b")], key=None, repeatable=False)
        with pytest.raises(RedisUnavailable):
            await redis.execute([("GET", "b")], key=None, repeatable=False)


async def test_a_fence_that_never_comes_is_a_time_out() -> None:
    def on_command(number: int, words: Words) -> Answer:
        return b"" if number == 0 and is_fence(words) and words[1][17:] else None

    async with (
        scripted(on_command) as server,
        Redis(options(server.url, call_timeout_s=0.2)) as redis,
    ):
        answer = await ask(redis, 1)
        assert isinstance(answer, OutcomeUnknown)
        assert "no reply in time" in str(answer)
        assert await ask(redis, 1) == b"caller-1"


async def test_a_connection_that_is_retired_answers_what_it_was_asked() -> None:
    """After READONLY the next call goes to a new connection; the others' replies still come."""

    def on_command(number: int, words: Words) -> Answer:
        if number == 0 and words[-1] == b"caller-0":
            return b"-READONLY you can't write here\r\n"
        return None

    async with scripted(on_command) as server, Redis(options(server.url)) as redis:
        large = "x" * 3_000
        connection = await open_connection(Address("127.0.0.1", server.port), Credentials())
        first = connection.request([("GET", "a"), ("SET", "b", large)], 2.0)
        connection.retire("for the test")
        assert not connection.usable
        with pytest.raises(RedisUnavailable):
            await connection.request([("GET", "c")], 2.0)
        assert await first == [b"a", b"OK"]
        await connection.closed
        answers = await asyncio.gather(*(ask(redis, number) for number in range(CALLERS)))
        assert answers == [b"caller-%d" % number for number in range(CALLERS)]
