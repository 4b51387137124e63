"""Slow handlers, and one that ends its process, in instances that are killed and paused."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from tests.faults.profile import rounds
from tests.kit.eventually import eventually
from tests.kit.history import History
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess
from tests.routing.harness import dead_inbound, envelope, events, routing
from tests.routing.test_roles import environment

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
APP = ["serve", "inbox", "--app", "tests.routing.slow_app:app"]
STALE_MS = rounds(3_000, 15_000)
KEYS = rounds(6, 40)
DEADLINE_S = 240.0


class Instances:
    """A relay, and inboxes that are started again when they end."""

    def __init__(self, stack: AsyncExitStack, env: dict[str, str]) -> None:
        self._stack = stack
        self._env = env
        self.inboxes: list[RoleProcess] = []
        self.deaths = 0

    async def start(self, inboxes: int) -> str:
        relay = await self._stack.enter_async_context(RoleProcess(["serve", "relay"], self._env))
        for _ in range(inboxes):
            self.inboxes.append(await self._started())
        return f"http://127.0.0.1:{relay.ports['http']}"

    async def _started(self) -> RoleProcess:
        return await self._stack.enter_async_context(RoleProcess(APP, self._env))

    async def restart_dead(self) -> None:
        for place, role in enumerate(self.inboxes):
            if not role.alive:
                self.deaths += 1
                self.inboxes[place] = await self._started()


async def _post(
    client: aiohttp.ClientSession, url: str, history: History, key: str, text: str
) -> None:
    history.attempted(text, key)
    answer = await client.post(url, data=envelope(key, text=text))
    assert answer.status == 200
    history.sent(text, key)


async def test_f12_a_mail_that_ends_its_process_is_set_aside_and_its_key_goes_on(
    tmp_path: Path,
) -> None:
    with ServerProcess() as server:
        async with routing(server.url) as (runtime, store), AsyncExitStack() as stack:
            stale = {"ANGARIUM_ROUTING__STALE_AFTER_MS": str(STALE_MS), "SLOW_S": "0.01"}
            instances = Instances(stack, environment(runtime.settings, tmp_path, **stale))
            url = await instances.start(2)
            history = History(tmp_path / "sent.jsonl")
            async with aiohttp.ClientSession() as client:
                await _post(client, url, history, "bad", "before")
                await client.post(url, data=envelope("bad", text="exit"))
                await _post(client, url, history, "bad", "after")
                for number in range(KEYS):
                    await _post(client, url, history, f"good{number}", f"good{number}")

            async def all_ended() -> bool:
                await instances.restart_dead()
                names = [event.event for event in await events(runtime)]
                return (names.count("dead"), names.count("handled")) == (1, KEYS + 2)

            await eventually(all_ended, DEADLINE_S)
            (dead,) = (await dead_inbound(runtime, store).page()).letters
            assert (dead.recip_key, dead.attempts) == ("bad", 3)
            assert 1 <= instances.deaths <= 3, "one for each attempt"
            files = [tmp_path / "sent.jsonl", *tmp_path.glob("inbox-*.jsonl")]
            verdict = History.read(*files).check()
            print(f"\n{verdict}\ndeaths {instances.deaths}")
            assert verdict.lost.count == verdict.out_of_order.count == 0


async def test_handlers_slower_than_the_time_out_survive_kills_and_pauses(tmp_path: Path) -> None:
    slow_s = STALE_MS / 1000 * 1.5
    with ServerProcess() as server:
        async with routing(server.url) as (runtime, _), AsyncExitStack() as stack:
            stale = {"ANGARIUM_ROUTING__STALE_AFTER_MS": str(STALE_MS), "SLOW_S": str(slow_s)}
            instances = Instances(stack, environment(runtime.settings, tmp_path, **stale))
            url = await instances.start(3)
            history = History(tmp_path / "sent.jsonl")
            async with aiohttp.ClientSession() as client:
                for turn in range(3):
                    for number in range(KEYS):
                        await _post(client, url, history, f"k{number}", f"k{number}-{turn}")
            history.fault("kill -9")
            instances.inboxes[0].kill()
            history.fault("pause")
            instances.inboxes[1].pause()
            await asyncio.sleep(2 * STALE_MS / 1000)
            instances.inboxes[1].resume()

            async def all_handled() -> bool:
                await instances.restart_dead()
                names = [event.event for event in await events(runtime)]
                assert names.count("dead") == 0
                return names.count("handled") == 3 * KEYS

            await eventually(all_handled, DEADLINE_S)
            files = [tmp_path / "sent.jsonl", *tmp_path.glob("inbox-*.jsonl")]
            verdict = History.read(*files).check()
            print(f"\n{verdict}")
            assert verdict.lost.count == verdict.out_of_order.count == 0
            assert verdict.operations == 3 * KEYS
