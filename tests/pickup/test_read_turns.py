"""The turns of clients that call often: who is read from, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from angarium.pickup.budget import TURN
from angarium.pickup.read_turns import BYTES_PER_CALL, PASS_TURNS, TURN_CALLS, ReadTurns
from tests.pickup.harness import DID, connected, gateway, sqlite
from tests.pickup.test_backpressure import hear, say, unread


class Caller:
    """A client that notes whether it is read from."""

    def __init__(self) -> None:
        self.turn, self.turn_calls, self.reasons = -1, 0, 0

    def pause_reading(self, reason: int) -> None:
        self.reasons |= reason

    def resume_reading(self, reason: int) -> None:
        self.reasons &= ~reason


class Passes:
    """The passes of an event loop, one at a time."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.turns = ReadTurns(self.soon.append)

    def run_one(self) -> None:
        due, self.soon[:] = list(self.soon), []
        for each in due:
            each()


def test_a_client_that_calls_often_in_one_pass_waits_for_the_next() -> None:
    loop, busy = Passes(), Caller()
    for _ in range(TURN_CALLS - 1):
        loop.turns.count(busy, 1, 40)
    assert busy.reasons == 0
    loop.turns.count(busy, 1, 40)
    assert busy.reasons == TURN
    loop.run_one()
    assert busy.reasons == 0
    assert len(loop.turns) == 0
    assert loop.soon == []


def test_calls_of_several_passes_do_not_add_up() -> None:
    loop, calm = Passes(), Caller()
    for _ in range(5):
        loop.turns.count(calm, TURN_CALLS - 1, 40)
        assert calm.reasons == 0
        loop.run_one()


def test_large_messages_count_as_several_calls() -> None:
    loop, large = Passes(), Caller()
    loop.turns.count(large, 1, BYTES_PER_CALL * TURN_CALLS)
    assert large.reasons == TURN


def test_flooding_clients_take_turns_and_a_calm_one_never_waits() -> None:
    loop, calm = Passes(), Caller()
    flooding = [Caller() for _ in range(3 * PASS_TURNS)]
    had_turns = [0] * len(flooding)
    for _ in range(9):
        for number, each in enumerate(flooding):
            if not each.reasons:
                loop.turns.count(each, TURN_CALLS, 40)
                had_turns[number] += 1
        loop.turns.count(calm, 1, 40)
        assert calm.reasons == 0
        loop.run_one()
        assert sum(not each.reasons for each in flooding) == PASS_TURNS
    # One each at the beginning; then each in every third pass.
    assert set(had_turns) == {1 + 8 // 3, 2 + 8 // 3}


async def test_a_client_that_had_to_wait_gets_all_its_answers(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path)) as service,
        connected(service) as (client, _),
        unread(service) as wire,
    ):
        for _ in range(5):
            await say(wire, *[("ping", [])] * (3 * TURN_CALLS))
        for _ in range(5):
            assert [each["result"] for each in await hear(wire)] == ["pong"] * (3 * TURN_CALLS)
        added = [client.add_message("c", [DID], number) for number in range(5 * TURN_CALLS)]
        assert len(set(await asyncio.gather(*added))) == 5 * TURN_CALLS
