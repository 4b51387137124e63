"""Slow handlers, and one that ends its process, in instances that are killed and paused."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from angarium.routing.store import RoutingStore
from angarium.runtime.runtime import Runtime
from tests.faults.poison import WAYS
from tests.faults.profile import LONG, rounds
from tests.kit.eventually import eventually
from tests.kit.history import History
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess
from tests.kit.supervisor import Supervisor
from tests.kit.verdict import Verdict
from tests.routing.harness import dead_inbound, entries, envelope, events, routing
from tests.routing.test_roles import environment

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
APP = ["serve", "inbox", "--app", "tests.routing.slow_app:app"]
STALE_MS = rounds(3_000, 15_000)
KEYS = rounds(6, 40)
DEADLINE_S = 240.0


async def _post(
    client: aiohttp.ClientSession, url: str, history: History, key: str, text: str
) -> None:
    history.attempted(text, key)
    answer = await client.post(url, data=envelope(key, text=text))
    assert answer.status == 200
    history.sent(text, key)


@asynccontextmanager
async def _instances(
    tmp_path: Path, slow_s: float, count: int
) -> AsyncIterator[tuple[Runtime, RoutingStore, Supervisor, str]]:
    """A relay, and inboxes that are started again when they end."""
    with ServerProcess() as server:
        async with routing(server.url) as (runtime, store):
            given = {"ANGARIUM_ROUTING__STALE_AFTER_MS": str(STALE_MS), "SLOW_S": str(slow_s)}
            env = environment(runtime.settings, tmp_path, **given)
            async with (
                RoleProcess(["serve", "relay"], env) as relay,
                Supervisor(lambda: RoleProcess(APP, env), count) as inboxes,
            ):
                yield runtime, store, inboxes, f"http://127.0.0.1:{relay.ports['http']}"


@pytest.mark.parametrize("way", WAYS if LONG else ["SIGKILL", "sys.exit"])
async def test_f12_a_poison_mail_is_set_aside_with_its_reason_and_its_key_goes_on(
    tmp_path: Path, way: str
) -> None:
    async with _instances(tmp_path, 0.01, 2) as (runtime, store, inboxes, url):
        history = History(tmp_path / "sent.jsonl")
        async with aiohttp.ClientSession() as client:
            await _post(client, url, history, "bad", "before")
            await client.post(url, data=envelope("bad", text=f"poison:{way}"))
            posted_s = time.time()
            await _post(client, url, history, "bad", "after")
            for number in range(KEYS):
                await _post(client, url, history, f"good{number}", f"good{number}")

        async def all_ended() -> bool:
            names = [event.event for event in await events(runtime)]
            return (names.count("dead"), names.count("handled")) == (1, KEYS + 2)

        await eventually(all_ended, DEADLINE_S)
        (dead,) = (await dead_inbound(runtime, store).page()).letters
        verdict = _verdict(tmp_path)
        print(
            f"\n{verdict}\n{way}: set aside after {dead.at_ms / 1000 - posted_s:.1f} s, "
            f"{dead.tries} attempts, {inboxes.deaths} processes died; {dead.reason}"
        )
        assert (dead.recip_key, dead.tries) == ("bad", 3)
        if WAYS[way]:
            assert dead.reason == "its instance was lost"
            assert 1 <= inboxes.deaths <= 3, "one for each attempt"
        else:
            assert inboxes.deaths == 0
            assert way.replace("sys.exit", "SystemExit") in dead.reason
        assert verdict.lost.count == verdict.out_of_order.count == 0


async def test_handlers_slower_than_the_time_out_survive_kills_and_pauses(tmp_path: Path) -> None:
    slow_s = STALE_MS / 1000 * 1.5
    async with _instances(tmp_path, slow_s, 3) as (runtime, store, inboxes, url):
        history = History(tmp_path / "sent.jsonl")
        async with aiohttp.ClientSession() as client:
            for turn in range(3):
                for number in range(KEYS):
                    await _post(client, url, history, f"k{number}", f"k{number}-{turn}")
        history.fault("kill -9")
        inboxes.spare(inboxes.roles[0]).kill()
        history.fault("pause")
        paused = inboxes.roles[0]
        paused.pause()
        hurt_s = time.time()

        async def moved() -> list[float]:
            """When each key that a hurt instance had was due again."""
            found = [each for each in await entries(runtime) if each.module == "routing"]
            times = [e.at_ms for e in found for event in e.events if event.event == "reassigned"]
            return [each / 1000 - hurt_s for each in times if each / 1000 > hurt_s]

        async def keys_moved() -> bool:
            found, _ = await store.instances()
            return (
                sum(each.has_mail for each in found if not each.live) == 0 and await moved() != []
            )

        await eventually(keys_moved, DEADLINE_S)
        due_again = await moved()
        paused.resume()

        async def all_handled() -> bool:
            names = [event.event for event in await events(runtime)]
            assert names.count("dead") == 0
            return names.count("handled") == 3 * KEYS

        await eventually(all_handled, DEADLINE_S)
        verdict = _verdict(tmp_path)
        print(f"\n{verdict}\n{len(due_again)} keys due again after {max(due_again):.1f} s at most")
        assert verdict.lost.count == verdict.out_of_order.count == 0
        assert verdict.operations == 3 * KEYS
        # Each message ended once in the journal, whichever instance ran its function again.
        handled = Counter(each.subject for each in await events(runtime, "handled"))
        assert set(handled.values()) == {1}


def _verdict(folder: Path) -> Verdict:
    return History.read(folder / "sent.jsonl", *folder.glob("inbox-*.jsonl")).check()
