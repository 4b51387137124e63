"""Instances killed, and paused past their time and resumed, under load: none lost, all in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from angarium.runtime.runtime import Runtime
from tests.faults.profile import rounds
from tests.kit.eventually import eventually
from tests.kit.history import History
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess
from tests.routing.harness import envelope, events, routing
from tests.routing.test_roles import APP, environment

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
MESSAGES = rounds(4_000, 50_000)
KEYS = rounds(800, 10_000)
STALE_MS = rounds(1_500, 15_000)
PAUSE_S = rounds(2, 20)
SENDERS = 16
DEADLINE_S = 120.0


class Load:
    """Senders that each post their own keys' messages, one after the other."""

    def __init__(self, url: str, history: History) -> None:
        self._url = url
        self._history = history
        self.sent = 0
        self.refused = 0

    async def run(self) -> None:
        connector = aiohttp.TCPConnector(limit=SENDERS)
        async with (
            aiohttp.ClientSession(connector=connector) as client,
            asyncio.TaskGroup() as group,
        ):
            for sender in range(SENDERS):
                group.create_task(self._send(client, sender))

    async def _send(self, client: aiohttp.ClientSession, sender: int) -> None:
        draw = random.Random(sender)
        mine = range(sender, KEYS, SENDERS)
        for number in range(MESSAGES // SENDERS):
            key, text = f"key{draw.choice(mine)}", f"{sender}-{number}"
            self._history.attempted(text, key)
            answer = await client.post(self._url, data=envelope(key, text=text))
            if answer.status == 200:
                self._history.sent(text, key)
                self.sent += 1
            else:
                self.refused += 1
            # Spread over the time that the faults take.
            await asyncio.sleep(draw.uniform(0, 2 * SPAN_S * SENDERS / MESSAGES))


SPAN_S = rounds(10, 75)


async def _hurt(
    inboxes: list[RoleProcess], start: Callable[[], Awaitable[RoleProcess]], history: History
) -> None:
    """Pauses one, kills another, twice over; each is back, or has a successor."""
    for turn in range(2):
        paused, killed = inboxes[turn % 3], inboxes[(turn + 1) % 3]
        history.fault("pause")
        paused.pause()
        await asyncio.sleep(PAUSE_S / 4)
        history.fault("kill -9")
        killed.kill()
        inboxes[(turn + 1) % 3] = await start()
        await asyncio.sleep(PAUSE_S * 3 / 4)
        paused.resume()
        await asyncio.sleep(PAUSE_S / 4)


async def _check_moves(runtime: Runtime) -> int:
    """Every move of a key, by the rule: its owner had been silent for long enough."""
    moves = await events(runtime, "reassigned")
    for event in moves:
        silent_ms = int(str(event.detail).removeprefix("silent_ms="))
        assert silent_ms > STALE_MS, event
    return len(moves)


async def test_no_message_is_lost_and_order_holds_while_instances_die_and_pause(
    tmp_path: Path,
) -> None:
    with ServerProcess() as server:
        async with routing(server.url) as (runtime, _), AsyncExitStack() as stack:
            stale = {"ANGARIUM_ROUTING__STALE_AFTER_MS": str(STALE_MS)}
            env = environment(runtime.settings, tmp_path, **stale)

            async def start() -> RoleProcess:
                return await stack.enter_async_context(RoleProcess(["serve", "inbox", *APP], env))

            relay = await stack.enter_async_context(RoleProcess(["serve", "relay"], env))
            inboxes = [await start() for _ in range(3)]
            history = History(tmp_path / "sent.jsonl")
            load = Load(f"http://127.0.0.1:{relay.ports['http']}", history)
            async with asyncio.TaskGroup() as group:
                group.create_task(load.run())
                await _hurt(inboxes, start, history)

            async def balanced() -> bool:
                names = [event.event for event in await events(runtime)]
                accepted, handled = names.count("accepted"), names.count("handled")
                assert accepted == handled, (accepted, handled)
                return accepted >= load.sent

            await eventually(balanced, DEADLINE_S)
            moves = await _check_moves(runtime)
            files = [tmp_path / "sent.jsonl", *tmp_path.glob("inbox-*.jsonl")]
            verdict = History.read(*files).check()
            print(f"\n{verdict}\nmoves {moves:,}, refused {load.refused}")
            assert verdict.lost.count == verdict.out_of_order.count == 0
            assert verdict.unexpected.count == verdict.wrong_key.count == 0
            assert verdict.operations == load.sent == MESSAGES // SENDERS * SENDERS
            assert verdict.faults == {"pause": 2, "kill -9": 2}
            assert moves > 0
