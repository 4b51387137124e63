"""Pictures of the dashboard, with a small live load behind it: `python tools/screenshots.py`.

Starts a server and all roles on free ports, sends work through every module for a while, and takes
the picture for the README. With `--all FOLDER` every page in both sizes and themes goes there too.
Needs the environment of the tests and a Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args
from urllib.parse import quote

import aiohttp

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from playwright.sync_api import Browser  # noqa: E402
from tests.dashboard.browser import SIZES, Theme, browser, opened  # noqa: E402
from tests.dashboard.harness import (  # noqa: E402
    Client,
    RunningSystem,
    SampleData,
    add_sample_data,
    run,
    running_system,
)
from tests.routing.harness import envelope  # noqa: E402

from angarium.pickup.client import Delivery, PickupClient  # noqa: E402

PICTURE = ROOT / "docs" / "img" / "dashboard.png"
# Long enough for the charts to have a shape.
LOAD_S = 75
BYTES_MAX = 300_000


async def load(system: RunningSystem, stop: threading.Event) -> None:
    """Work in every module, in waves, until told to stop."""
    arrived: asyncio.Queue[Delivery] = asyncio.Queue()
    url = f"ws://127.0.0.1:{system.port('gateway', 'gateway')}/"
    async with (
        aiohttp.ClientSession() as session,
        PickupClient(url, on_messages=arrived.put_nowait) as pickup,
        asyncio.TaskGroup() as group,
    ):
        for number in range(8):
            await pickup.add_live_session(f"phone-{number}", f"session-{number}")
        group.create_task(_acknowledge(pickup, arrived, stop))
        api = Client(session, system.url)
        for turn in itertools.count():
            if stop.is_set():
                break
            began = time.monotonic()
            await _round(system, session, api, pickup, turn)
            await asyncio.sleep(max(0.0, 0.25 - (time.monotonic() - began)))


async def _round(
    system: RunningSystem,
    session: aiohttp.ClientSession,
    api: Client,
    pickup: PickupClient,
    turn: int,
) -> None:
    wave = 6 + 5 * ((turn // 12) % 4)
    messages = [{"payload": {"order": turn, "sleep_s": 0.15}} for _ in range(wave)]
    await api.ask("POST", "/v1/messages", messages)
    starts = [
        {"pipeline": "payment", "data": {"quick": turn % 9 > 0, "sleep_s": 0.4}, "owner": "shop"}
        for _ in range(wave // 3)
    ]
    await api.ask("POST", "/v1/transactions/batch", {"transactions": starts})
    chat, request = f"chat-{turn % 5}", f"question-{turn}"
    await api.request(chat, request)
    await api.reply(chat, request, f"{request}-a", {"text": "let me see"})
    relay = f"http://127.0.0.1:{system.port('relay', 'http')}/"
    for number in range(wave // 4):
        await session.post(relay, data=envelope(f"did:key:z6Mk{turn % 7}{number}"))
    for number in range(wave // 3):
        who = f"phone-{(turn + number) % 12}"  # some of them are away
        await pickup.add_message(who, ["did:example:anna"], {"text": "hello"})


async def _acknowledge(
    pickup: PickupClient, arrived: asyncio.Queue[Delivery], stop: threading.Event
) -> None:
    while not stop.is_set():
        try:
            async with asyncio.timeout(0.5):
                delivery = await arrived.get()
        except TimeoutError:
            continue
        ids = [message.id for message in delivery.messages]
        await pickup.remove_messages(delivery.connection_id, ids)


@contextmanager
def loaded(system: RunningSystem) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(load(system, stop)))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def places(data: SampleData) -> dict[str, str]:
    return {
        "overview": "#/",
        "dispatch": "#/dispatch",
        "message": f"#/dispatch/{data.dead[0]}",
        "routing": "#/routing",
        "conversations": "#/conversations",
        "conversation": f"#/conversations/{quote(data.conversation, safe='')}",
        "pickup": "#/pickup",
        "connection": f"#/pickup/{quote(data.connection, safe='')}",
        "transactions": "#/transactions",
        "transactions-success": "#/transactions?status=success",
        "transaction": f"#/transactions/{data.sleeping}",
        "ended": f"#/transactions/{data.ended}",
        "lake": "#/lake",
        "search": f"#/search?id={data.ended}",
    }


def take_all(found: Browser, url: str, data: SampleData, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for size, theme in itertools.product(SIZES, get_args(Theme)):
        with opened(found, url, size=size, theme=theme) as page:
            for name, place in places(data).items():
                page.goto(f"{url}/{place}")
                page.locator("main .card").last.wait_for()
                page.wait_for_timeout(1_200)
                page.screenshot(path=folder / f"{name}-{size}-{theme}.png", full_page=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="every page as well")
    parser.add_argument("--seconds", type=float, default=LOAD_S, help="of load before the picture")
    options = parser.parse_args(arguments)
    with running_system() as system:
        data: SampleData = run(add_sample_data(system))
        with loaded(system):
            time.sleep(options.seconds)
            with browser() as found:
                with opened(found, system.url) as page:
                    page.set_viewport_size({"width": 1360, "height": 1010})
                    page.locator("main .card").last.wait_for()
                    page.wait_for_timeout(2_000)
                    page.screenshot(path=PICTURE)
                if options.all:
                    take_all(found, system.url, data, options.all)
    size = PICTURE.stat().st_size
    print(f"{PICTURE.relative_to(ROOT)}: {size:,} bytes")
    return 0 if size < BYTES_MAX else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
