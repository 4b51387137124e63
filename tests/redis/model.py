"""Callers that share a client, the faults that befall it, and what each answer has to be.

Every question has an answer that only it can have: a value used once, or the next number of a
counter. A caller that was told nothing (OutcomeUnknown, cancelled) leaves its question open; one
that was told RedisUnavailable or CommandInvalid knows that it was not done. `settle` compares what
the server holds with the answers that the callers got.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import secrets
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from angarium.redis.client import Redis
from angarium.redis.commands import Argument, Command
from angarium.redis.connection import ReplyError
from angarium.redis.errors import (
    AngariumError,
    CommandInvalid,
    OutcomeUnknown,
    RedisUnavailable,
)
from angarium.redis.options import RedisOptions
from angarium.redis.scripts import Script
from tests.kit.proxy import FaultProxy

SOURCE = "redis.call('INCR', KEYS[1]); return {ARGV[1], {#ARGV, {ARGV[1]}, false}, -1}"
SCRIPT = Script(
    "model", SOURCE, hashlib.sha1(SOURCE.encode()).hexdigest(), repeatable=False, writes=True
)
COUNTERS = 4
TIMEOUT_S = 1.0
UNPACKABLE: Sequence[Any] = (
    None,
    True,
    [1],
    {"a": 1},
    object(),
    "lone \udce9 surrogate",
    10**5_000,
    bytearray(b"x"),
    memoryview(b"abcdef")[::2],
)
UNSENDABLE: Sequence[Any] = ([], [()], ["PING"], [b"PING"], [("PING",), ()])
FAULTS = (
    "cut",
    "cut_mid_reply",
    "cut_mid_request",
    "delay",
    "half_open",
    "refuse",
    "throttle",
    "heal",
)


class WrongAnswer(AssertionError):
    """A caller was given what was not the answer to its question."""


def as_bytes(argument: Argument) -> bytes:
    """How Redis gets an argument, written down independently of the packer."""
    if isinstance(argument, bytes):
        return argument
    return (argument if isinstance(argument, str) else repr(argument)).encode()


@dataclass
class CounterAnswers:
    """The answers that callers of one counter got."""

    numbers: list[int] = field(default_factory=list)
    done: int = 0
    """Increments whose success is known though their number is not."""
    unknown: int = 0


class Model:
    """`ask(kind)` is one caller with one question; any number at once."""

    def __init__(self, redis: Redis, rng: random.Random, prefix: str | None = None) -> None:
        self.redis = redis
        self.rng = rng
        self.prefix = prefix or secrets.token_hex(4)
        self.commands = 0
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.counters: dict[str, CounterAnswers] = defaultdict(CounterAnswers)
        self._number = 0
        self._questions: dict[str, Callable[[], Awaitable[None]]] = {
            "echo": self._echo,
            "increment": self._increment,
            "pipeline": self._pipeline,
            "durable": self._durable,
            "script": self._script,
            "refused": self._refused,
            "unpackable": self._unpackable,
            "impatient": self._impatient,
        }

    @property
    def kinds(self) -> Sequence[str]:
        return tuple(self._questions)

    async def ask(self, kind: str) -> None:
        """How it ended is counted, and a wrong answer noted for `settle`."""
        try:
            await self._questions[kind]()
            outcome = "answered"
        except (AngariumError, WrongAnswer) as error:
            outcome = type(error).__name__
            if not isinstance(error, OutcomeUnknown | RedisUnavailable):
                # An error that belongs to another's command is a wrong answer too.
                self.wrong.append(f"{kind}: {error}")
        except asyncio.CancelledError:
            self.outcomes["cancelled"] += 1
            raise
        self.outcomes[outcome] += 1

    async def settle(self) -> None:
        """Call when nothing is in flight and no fault is left."""
        if self.wrong:
            raise WrongAnswer(f"{len(self.wrong)} wrong answers; the first to {self.wrong[0]}")
        for name, answers in self.counters.items():
            value = int(await self.redis.call("GET", name, key=name) or 0)
            known = len(answers.numbers) + answers.done
            if len(set(answers.numbers)) != len(answers.numbers):
                raise WrongAnswer(f"{name}: two callers were given one number")
            if not known <= value <= known + answers.unknown:
                raise WrongAnswer(f"{name} is {value}; {known} known, {answers.unknown} unknown")
            if answers.numbers and max(answers.numbers) > value:
                raise WrongAnswer(f"{name}: a caller was given {max(answers.numbers)} of {value}")
        if self.redis.unmatched:
            raise WrongAnswer(f"{self.redis.unmatched} connections had replies that do not match")

    # Questions ----------------------------------------------------------------------------

    async def _echo(self) -> None:
        argument = self._argument()
        answer = await self._send([("ECHO", argument)], repeatable=self.rng.random() < 0.5)
        self._expect(answer, [as_bytes(argument)])

    async def _increment(self) -> None:
        (number,) = await self._count([("INCR", name := self._counter())], {name: 1})
        self._take_number(name, number)

    async def _pipeline(self) -> None:
        """Answers, an error and increments in one; hundreds of commands at times."""
        name = self._counter()
        commands: list[Command] = []
        expected: list[Any] = []
        for _ in range(self.rng.choice((1, 2, 5, 300 if self.rng.random() < 0.1 else 3))):
            kind = self.rng.choice(("echo", "increment", "error"))
            if kind == "increment":
                commands.append(("INCR", name))
                expected.append(int)
            elif kind == "error":
                commands.append(("NO-SUCH-COMMAND", value := self._unique()))
                expected.append(value)
            else:
                commands.append(("ECHO", argument := self._argument()))
                expected.append(as_bytes(argument))
        replies = await self._count(commands, {name: expected.count(int)})
        self._expect(len(replies), len(commands))
        for reply, wanted in zip(replies, expected, strict=True):
            if wanted is int:
                self._take_number(name, reply)
            elif isinstance(wanted, str):
                self._expect(isinstance(reply, ReplyError) and wanted in str(reply), True)
            else:
                self._expect(reply, wanted)

    async def _durable(self) -> None:
        name = self._counter()
        commands = [("INCR", name), ("WAIT", 0, 0)]
        number, replicas = await self._count(commands, {name: 1}, pool="durable")
        self._take_number(name, number)
        self._expect(replicas, 0)

    async def _script(self) -> None:
        name, argument = self._counter(), self._argument()
        self.commands += 1
        answers = self.counters[name]
        answers.unknown += 1
        try:
            (reply,) = await self.redis.run(SCRIPT, [name], [argument])
        except RedisUnavailable:
            answers.unknown -= 1
            raise
        answers.unknown -= 1
        answers.done += 1
        value = as_bytes(argument)
        self._expect(reply, [value, [1, [value], None], -1])

    async def _refused(self) -> None:
        value = self._unique()
        (reply,) = await self._send([("NO-SUCH-COMMAND", value)], repeatable=True)
        self._expect(isinstance(reply, ReplyError) and value in str(reply), True)

    async def _unpackable(self) -> None:
        """Its own error, and nothing of it is sent: the increment in front is not done."""
        if self.rng.random() < 0.3:
            commands = self.rng.choice(UNSENDABLE)
        else:
            bad = (self._counter(), self.rng.choice(UNPACKABLE))
            commands = [("INCR", self._counter()), ("SET", *bad)]
        try:
            await self._send(commands, repeatable=False)
        except CommandInvalid:
            return
        raise WrongAnswer(f"{commands!r} was sent")

    async def _impatient(self) -> None:
        """Waits no longer than a moment; what then comes is for nobody."""
        name = self._counter()
        try:
            async with asyncio.timeout(self.rng.random() * 0.003):
                (number,) = await self._count([("INCR", name)], {name: 1})
        except TimeoutError:
            self.outcomes["timed out"] += 1
            return
        self._take_number(name, number)

    # How ----------------------------------------------------------------------------------

    async def _send(self, commands: Sequence[Command], **how: Any) -> list[Any]:
        self.commands += len(commands)
        return await self.redis.execute(commands, key=self.prefix, **how)

    async def _count(
        self, commands: Sequence[Command], increments: dict[str, int], **how: Any
    ) -> list[Any]:
        """Send once. The increments are open until an answer, or word that they were not sent."""
        for name, count in increments.items():
            self.counters[name].unknown += count
        try:
            replies = await self._send(commands, repeatable=False, **how)
        except RedisUnavailable:
            self._close(increments)
            raise
        self._close(increments)
        return replies

    def _close(self, increments: dict[str, int]) -> None:
        for name, count in increments.items():
            self.counters[name].unknown -= count

    def _take_number(self, name: str, number: Any) -> None:
        if type(number) is not int:
            raise WrongAnswer(f"INCR was answered with {number!r:.200}")
        self.counters[name].numbers.append(number)

    def _expect(self, answer: Any, wanted: Any) -> None:
        if answer != wanted:
            raise WrongAnswer(f"{answer!r:.200} is not {wanted!r:.200}")

    def _counter(self) -> str:
        return f"{{{self.prefix}}}:{self.rng.randrange(COUNTERS)}"

    def _unique(self) -> str:
        self._number += 1
        return f"{self.prefix}-{self._number}-"

    def _argument(self) -> Argument:
        """Something that nobody else sends: text, bytes, numbers; small, and large at times."""
        unique, rng = self._unique(), self.rng
        kind = rng.choice(("text", "bytes", "integer", "float", "large", "protocol"))
        if kind == "text":
            return unique + "".join(
                chr(rng.choice((0, 9, 65, 0xE9, 0x2603, 0x1F600))) for _ in "ab"
            )
        if kind == "bytes":
            return unique.encode() + rng.randbytes(rng.randrange(40))
        if kind == "integer":
            return rng.choice((-1, 1)) * (self._number << 64) + rng.randrange(1 << 64)
        if kind == "float":
            return self._number + rng.random()
        if kind == "large" and rng.random() < 0.3:
            return unique.encode() * rng.choice((200, 5_000))
        # What would be another's reply if it were read as one.
        return f"\r\n$3\r\n{unique}\r\n*2\r\n:1\r\n+OK\r\n"


def befall(proxy: FaultProxy, fault: str, rng: random.Random) -> None:
    """One fault; those that last do so until `heal`."""
    if fault == "cut":
        proxy.cut()
    elif fault == "cut_mid_reply":
        proxy.cut_after(rng.randrange(2_000), "client")
    elif fault == "cut_mid_request":
        proxy.cut_after(rng.randrange(2_000), "server")
    elif fault == "delay":
        proxy.delay(rng.random() * 0.005)
    elif fault == "half_open":
        proxy.half_open(rng.choice(("both", "to_server", "to_client")))
    elif fault == "refuse":
        proxy.refuse()
    elif fault == "throttle":
        proxy.throttle(rng.choice((100_000, 1_000_000)))
    else:
        proxy.heal()


@asynccontextmanager
async def modelled(port: int, rng: random.Random) -> AsyncIterator[tuple[Model, FaultProxy]]:
    """A model on a server that is reached through a proxy."""
    async with FaultProxy("127.0.0.1", port) as proxy:
        options = RedisOptions(proxy.url, call_timeout_s=TIMEOUT_S, unavailable_timeout_s=TIMEOUT_S)
        async with Redis(options) as redis:
            yield Model(redis, rng), proxy
