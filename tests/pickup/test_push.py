"""Push notifications for offline recipients, with a real receiver that can fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from aiohttp import web

from angarium.pickup.client import PushToken
from angarium.pickup.push import HttpPushSender, Push, PushWorker, make_sender
from angarium.runtime.errors import InputInvalid, LimitExceeded, SettingInvalid
from angarium.settings import load
from tests.kit.eventually import eventually
from tests.pickup.harness import DID, connected, gateway, harness, sqlite

SOON = 30


class Receiver:
    """An HTTP server that records notifications and answers with a chosen status."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.got_s: list[float] = []
        self.status = 200
        self.hang: asyncio.Event | None = None
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        self.got.append(await request.json())
        self.got_s.append(time.monotonic())
        if self.hang is not None:
            await self.hang.wait()
        return web.Response(status=self.status)


@asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    pickup = Receiver()
    app = web.Application()
    app.router.add_post("/send", pickup.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    pickup.url = f"http://127.0.0.1:{port}/send"
    try:
        yield pickup
    finally:
        if pickup.hang is not None:
            pickup.hang.set()
        await runner.cleanup()


async def test_an_offline_recipient_is_notified_and_a_live_one_is_not(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with (
        receiver() as phone,
        gateway(any_redis_url, sqlite(tmp_path), push_url=phone.url) as service,
        connected(service) as (client, inbox),
    ):
        await client.add_live_session("live", "s1")
        seen = await client.add_message("live", [DID], 1, push=PushToken("t-live"))
        await inbox.has(seen)
        missed = await client.add_message("away", [DID], 1, push=PushToken("t-away", "apns"))
        await client.add_message("away", [DID], 1)
        await eventually(lambda: phone.got, SOON)
        assert phone.got == [{"token": "t-away", "messageId": missed, "type": "apns"}]
        await client.remove_live_session("live")
        again = await client.add_message("live", [DID], 1, push=PushToken("t-live"))
        await eventually(lambda: len(phone.got) == 2, SOON)
        assert phone.got[1] == {"token": "t-live", "messageId": again, "type": "fcm"}


async def test_a_receiver_that_hangs_delays_no_call(redis_url: str, tmp_path: Path) -> None:
    async with (
        receiver() as phone,
        gateway(redis_url, sqlite(tmp_path), push_url=phone.url) as service,
        connected(service) as (client, _),
    ):
        phone.hang = asyncio.Event()
        for number in range(20):
            await client.add_message(f"c{number}", [DID], 1, push=PushToken(f"t{number}"))
        await eventually(lambda: len(phone.got) == 20, SOON)
        assert await client.ping() == "pong"
        phone.hang.set()
        await eventually(lambda: service.pushes.sent == 20, SOON)


async def test_failed_tries_are_repeated_and_given_up_once_per_token(
    redis_url: str, tmp_path: Path
) -> None:
    async with receiver() as phone, harness(redis_url, sqlite(tmp_path)) as pickup:
        settings = load(pickup={"push_url": phone.url}).pickup
        sender = HttpPushSender()
        pushes = PushWorker(pickup.store, settings, sender)
        try:
            phone.status = 503
            for _ in range(3):
                await pickup.add(push=pushes.encoded_push(PushToken("t"), None))
                newest = await pickup.add(push=pushes.encoded_push(PushToken("t"), None))
            await pickup.clock.advance(1)
            for tries in range(1, 7):
                await pushes.run_once()
                await pushes.run_once()
                assert len(phone.got) == tries, "one try per interval"
                await pickup.clock.advance(100)
            await pushes.run_once()
            assert len(phone.got) == 6
            assert {each["messageId"] for each in phone.got} == {newest}, "the newest"
            assert (pushes.sent, pushes.failed) == (0, 1)
            phone.status = 410
            await pickup.add(push=pushes.encoded_push(PushToken("t"), None))
            await pickup.clock.advance(1)
            for _ in range(3):
                await pushes.run_once()
                await pickup.clock.advance(100)
            assert len(phone.got) == 7, "a permanent failure is not tried again"
        finally:
            await sender.close()


async def test_a_clients_notification_uri_has_to_be_allowed(redis_url: str, tmp_path: Path) -> None:
    async with receiver() as phone, harness(redis_url, sqlite(tmp_path)) as pickup:
        settings = load(pickup={"push_allowed": [phone.url]}).pickup
        sender = HttpPushSender()
        pushes = PushWorker(pickup.store, settings, sender)
        try:
            assert pushes.encoded_push(PushToken("t"), None) == b"", "there is no other URL"
            with pytest.raises(InputInvalid):
                pushes.encoded_push(PushToken("t"), "http://127.0.0.1:1/elsewhere")
            with pytest.raises(LimitExceeded):
                pushes.encoded_push(PushToken("t" * 5_000), phone.url)
            message = await pickup.add(push=pushes.encoded_push(PushToken("t"), phone.url))
            await pickup.clock.advance(1)
            await pushes.run_once()
            assert phone.got == [{"token": "t", "messageId": message, "type": "fcm"}]
        finally:
            await sender.close()


class Pager:
    """A sender class of the operator."""

    pushes: ClassVar[list[Push]] = []

    async def send(self, push: Push) -> None:
        self.pushes.append(push)


async def test_an_operators_sender_replaces_http(redis_url: str, tmp_path: Path) -> None:
    Pager.pushes.clear()
    own = "tests.pickup.test_push:Pager"
    async with (
        gateway(redis_url, sqlite(tmp_path), push_sender=own) as service,
        connected(service) as (client, _),
    ):
        message = await client.add_message("away", [DID], 1, push=PushToken("t", "apns"))
        await eventually(lambda: service.pushes.sent == 1, SOON)
        assert [(each.token, each.message_id, each.type) for each in Pager.pushes] == [
            ("t", message, "apns")
        ]


@pytest.mark.parametrize("name", ["nowhere:Pager", "tests.pickup.test_push:Nobody", "json:dumps"])
def test_an_unusable_sender_is_refused_before_the_start(name: str) -> None:
    with pytest.raises(SettingInvalid) as error:
        make_sender(load(pickup={"push_sender": name}).pickup)
    assert "PUSH_SENDER" in str(error.value)


async def test_a_token_of_several_connections_gets_one_notification_per_interval(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with receiver() as phone, harness(any_redis_url, sqlite(tmp_path)) as pickup:
        sender = HttpPushSender()
        pushes = PushWorker(pickup.store, load(pickup={"push_url": phone.url}).pickup, sender)
        try:
            for turn in range(2):
                for number in range(8):
                    note = pushes.encoded_push(PushToken("t"), None)
                    await pickup.add(f"default:c{number}", push=note)
                await pickup.clock.advance(1)
                for _ in range(2):
                    await pushes.run_once()
                    assert len(phone.got) == turn + 1
                    await pickup.clock.advance(5.1)
        finally:
            await sender.close()
