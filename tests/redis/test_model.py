"""Every answer is the answer to its own question, whatever befalls the callers and connections.

The machine searches for short stories; `drive` plays long ones (`python -m tests.redis.drive` up to
millions of commands). The last tests put old faults back, and the model has to find them.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from angarium.redis import connection as module
from angarium.redis.commands import Command, pack_commands
from angarium.redis.connection import Connection
from angarium.redis.errors import RedisUnavailable
from tests.faults.profile import LONG
from tests.kit.server import ServerProcess
from tests.redis.drive import drive_one
from tests.redis.model import FAULTS, Model, WrongAnswer, befall, modelled

KINDS = Model(None, random.Random()).kinds  # type: ignore[arg-type]
COMMANDS = 1_000_000 if LONG else 30_000
RUNS_MAX = 20
IN_FLIGHT_MAX = 100


class Callers(RuleBasedStateMachine):
    """Callers begin, are cancelled, get time; faults come and go. Nothing waits for its turn."""

    port: int

    @initialize(seed=st.integers(0, 1 << 32))
    def connect(self, seed: int) -> None:
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.asking: list[asyncio.Task[None]] = []
        self.rng = random.Random(seed)
        self.stack = AsyncExitStack()
        self.model, self.proxy = self.run(
            self.stack.enter_async_context(modelled(self.port, self.rng))
        )

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    @rule(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=20))
    @precondition(lambda self: len(self.asking) < IN_FLIGHT_MAX)
    def ask(self, kinds: list[str]) -> None:
        async def begin() -> None:
            self.asking += [asyncio.create_task(self.model.ask(kind)) for kind in kinds]

        self.run(begin())

    @rule(turns=st.integers(1, 20))
    def let_run(self, turns: int) -> None:
        async def let() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        self.run(let())
        for task in [task for task in self.asking if task.done()]:
            self.asking.remove(task)
            if not task.cancelled():
                task.result()

    @rule(which=st.lists(st.integers(0, IN_FLIGHT_MAX), min_size=1, max_size=5))
    def cancel(self, which: list[int]) -> None:
        for place in which:
            if place < len(self.asking):
                self.asking[place].cancel()

    @rule(fault=st.sampled_from(FAULTS))
    def befall(self, fault: str) -> None:
        async def act() -> None:
            befall(self.proxy, fault, self.rng)

        self.run(act())

    @rule()
    def settle(self) -> None:
        """All faults end, everybody is answered, and the server holds what they were told."""

        async def all_answered() -> None:
            self.proxy.heal()
            ended = await asyncio.gather(*self.asking, return_exceptions=True)
            for each in ended:
                if isinstance(each, Exception):
                    raise each
            await self.model.settle()

        self.run(all_answered())
        self.asking.clear()

    def teardown(self) -> None:
        if not hasattr(self, "runner"):
            return
        try:
            self.settle()
        finally:
            self.run(self.stack.aclose())
            self.runner.close()


def test_a_story_of_callers_and_faults(redis_server: ServerProcess) -> None:
    Callers.port = redis_server.port
    machine = Callers.TestCase
    machine.settings = settings(
        max_examples=2_000 if LONG else 60,
        stateful_step_count=40,
        suppress_health_check=list(HealthCheck),
    )
    machine("runTest").runTest()


async def test_many_callers_and_a_subscriber_under_faults(redis_server: ServerProcess) -> None:
    seed = random.SystemRandom().randrange(1 << 32) if LONG else 17
    print("seed", seed)
    outcomes, heard = Counter[str](), 0
    # Faults come by time: a fast machine may end a run before one of them has broken a call.
    for number in range(RUNS_MAX):
        model, happened = await drive_one(redis_server.port, seed + number, COMMANDS)
        assert model.commands >= COMMANDS
        outcomes += Counter(model.outcomes)
        heard += happened["heard"]
        if outcomes["OutcomeUnknown"] > 0:
            break
    assert outcomes["answered"] > 0
    assert outcomes["OutcomeUnknown"] > 0, "the faults were felt"
    assert heard > 0


# Faults put back on purpose: the model has to see them ------------------------------------------


def register_then_pack(
    self: Connection, commands: Sequence[Command], timeout_s: float
) -> asyncio.Future[list[Any]]:
    """F1 of 0.1.0: what can't be packed stays registered, and shifts all later replies."""
    future: asyncio.Future[list[Any]] = self._loop.create_future()
    if not self.usable:
        future.set_exception(RedisUnavailable("closed"))
        return future
    deadline = self._loop.time() + timeout_s
    self._in_flight.append(module._Request(future, len(commands), deadline))
    self._write(pack_commands(commands))
    self._watch_until(deadline)
    return future


def drop_cancelled(self: Connection, reply: Any) -> bool:
    """Forgets a caller that gave up, although its replies are still on the way."""
    while self._in_flight:
        request = self._in_flight[0]
        if isinstance(request, bytes) or not request.future.cancelled():
            break
        self._in_flight.popleft()
    return take(self, reply)


take = Connection._take


def unguarded(self: Connection, command: str, value: bytes) -> None:
    """The fence left out."""


BREAKAGES = {
    "register_then_pack": ("request", register_then_pack),
    "drop_cancelled": ("_take", drop_cancelled),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
async def test_the_model_finds_replies_that_go_to_the_wrong_caller(
    redis_server: ServerProcess, monkeypatch: pytest.MonkeyPatch, breakage: str
) -> None:
    """Without the fence, callers are given others' answers."""
    monkeypatch.setattr(Connection, *BREAKAGES[breakage])
    monkeypatch.setattr(Connection, "fence_with", unguarded)
    with pytest.raises(WrongAnswer, match="wrong answers; the first to") as found:
        await drive_one(redis_server.port, 17, COMMANDS)
    print(found.value)


@pytest.mark.parametrize("breakage", BREAKAGES)
async def test_with_the_fence_nobody_is_given_anothers_answer_though_the_client_is_broken(
    redis_server: ServerProcess, monkeypatch: pytest.MonkeyPatch, breakage: str
) -> None:
    """What was published on a connection that is closed may arrive after what was published on the
    next one: that is no answer, and the driver can report it first."""
    monkeypatch.setattr(Connection, *BREAKAGES[breakage])
    found = r"connections had replies that do not match|after \d+ came \d+"
    with pytest.raises(WrongAnswer, match=found):
        await drive_one(redis_server.port, 17, COMMANDS // 10)
