"""Redis killed and restarted under relay, inbox and deliverer: all come back by themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from angarium.routing.outbound_store import OutboundStore
from angarium.runtime.errors import AngariumError
from tests.faults.profile import rounds
from tests.kit.eventually import eventually
from tests.kit.history import History
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess
from tests.routing.harness import envelope, routing
from tests.routing.test_roles import APP, environment, received, sink

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
DEADLINE_S = 60.0


class Sending:
    """Posts one message after the other until told to stop, whatever happens to Redis."""

    def __init__(self, url: str, history: History) -> None:
        self._url = url
        self._history = history
        self.accepted: set[str] = set()
        self.over = False

    async def run(self, client: aiohttp.ClientSession, sender: int) -> None:
        number = 0
        while not self.over:
            number += 1
            text = f"{sender}-{number}"
            self._history.attempted(text, f"k{sender}")
            answer = await client.post(self._url, data=envelope(f"k{sender}", text=text))
            assert answer.status in (200, 503), await answer.text()
            if answer.status == 200:
                self._history.sent(text, f"k{sender}")
                self.accepted.add(text)


async def test_every_role_resumes_after_redis_was_killed(tmp_path: Path) -> None:
    with ServerProcess(aof=True, fsync="always") as server:
        patient = {"unavailable_timeout_ms": 30_000}
        async with routing(server.url, durability="local", redis=patient) as (runtime, _):
            more = {"ANGARIUM_DURABILITY": "local", "ANGARIUM_ALLOW_PRIVATE_ADDRESSES": "true"}
            env = environment(runtime.settings, tmp_path, **more)
            outbound = OutboundStore(runtime, "native")
            history = History(tmp_path / "sent.jsonl")
            async with (
                RoleProcess(["serve", "relay"], env) as relay,
                RoleProcess(["serve", "inbox", *APP], env) as inbox,
                RoleProcess(["serve", "deliverer"], env) as deliverer,
                sink({}) as (url, came),
                aiohttp.ClientSession() as client,
                asyncio.TaskGroup() as group,
            ):
                sending = Sending(f"http://127.0.0.1:{relay.ports['http']}", history)
                for sender in range(8):
                    group.create_task(sending.run(client, sender))
                for turn in range(rounds(2, 20)):
                    await _progress(sending)
                    history.fault("kill -9 redis")
                    server.kill()
                    await asyncio.to_thread(server.restart)
                    await _progress(sending)
                    await _delivered(outbound, f"{url}/{turn}", came)
                sending.over = True

                def all_handled() -> bool:
                    missing = sending.accepted - set(received(tmp_path))
                    assert not missing, sorted(missing)[:5]
                    return True

                await eventually(all_handled, DEADLINE_S)
                assert relay.alive
                assert inbox.alive
                assert deliverer.alive
            files = [tmp_path / "sent.jsonl", *tmp_path.glob("inbox-*.jsonl")]
            verdict = History.read(*files).check()
            print(f"\n{verdict}")
            assert verdict.lost.count == verdict.out_of_order.count == 0


async def _progress(sending: Sending) -> None:
    before = len(sending.accepted)
    await eventually(lambda: len(sending.accepted) > before + 20, DEADLINE_S)


async def _delivered(store: OutboundStore, url: str, came: list[tuple[str, bytes]]) -> None:
    """One delivery after the restart; a call whose answer was lost is made again."""

    async def push() -> bool:
        try:
            await store.push(url, b"x", {})
        except AngariumError as error:
            raise AssertionError(error) from None
        return True

    await eventually(push, DEADLINE_S)
    path = "/" + url.rpartition("/")[2]
    await eventually(lambda: (path, b"x") in came, DEADLINE_S)
