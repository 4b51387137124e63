"""The role `webhooks` with receivers that accept, refuse, hang, redirect or never stop sending."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from aiohttp import web
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import REGISTRY

from angarium.runtime.errors import SettingInvalid
from angarium.settings import load
from angarium.transactions import webhooks
from angarium.transactions.signatures import (
    SigningKeyInvalid,
    ed25519_signer,
    headers_of,
    hmac_signer,
)
from angarium.transactions.webhooks import WebhookSender
from tests.kit.eventually import eventually
from tests.transactions.harness import Harness, harness, running_node

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789").decode()
QUICK: dict[str, Any] = {
    "webhook_timeout_ms": 300,
    "webhook_retry_delay_ms": 1,
    "webhook_retry_factor": 1.0,
    "max_webhook_retries": 2,
}


@dataclass
class Receiver:
    """Responds as the path says, and stores the requests."""

    port: int = 0
    got: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    cut_off: int = 0
    release: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def about(self, transaction_id: str) -> list[Any]:
        return [
            body for _, _, body in self.got
            if body.get("metadata", {}).get("txId") == transaction_id
        ]  # fmt: skip

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = msgspec.json.decode(await request.read())
        path = request.path.strip("/")
        self.got.append((path, {k.lower(): v for k, v in request.headers.items()}, body))
        if path == "hangs":
            await self.release.wait()
        if path == "redirects":
            raise web.HTTPFound(self.url("good"))
        if path == "endless":
            response = web.StreamResponse()
            await response.prepare(request)
            with contextlib.suppress(ConnectionResetError):
                while not self.release.is_set():
                    await response.write(b"x" * 10_000)
                    await asyncio.sleep(0.01)
            self.cut_off += 1
            return response
        return web.Response(status=500 if path == "bad" else 204)


@asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    app = web.Application()
    app.router.add_post("/{path}", found.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.port = runner.addresses[0][1]
    try:
        yield found
    finally:
        found.release.set()
        await runner.cleanup()


@asynccontextmanager
async def sending(here: Harness) -> AsyncIterator[WebhookSender]:
    service = WebhookSender(here.runtime)
    await service.start()
    try:
        yield service
    finally:
        await service.stop(10)


async def _hooked(here: Harness, url: str, count: int = 1, **more: Any) -> list[str]:
    ids = [await here.start(webhook=url, **more) for _ in range(count)]
    for taken in await here.take(count=count):
        await here.store.complete(taken, "success", b'{"ok":1}', "")
    return ids


def _alerts_given_up() -> float:
    labels = {"what": "given_up"}
    return REGISTRY.get_sample_value("angarium_webhook_notices_total", labels) or 0.0


async def test_the_end_of_a_transaction_is_sent_signed_and_once(any_redis_url: str) -> None:
    key = Ed25519PrivateKey.generate()
    settings = {
        "webhook_secret": SECRET,
        "webhook_private_key": "whsk_" + base64.b64encode(key.private_bytes_raw()).decode(),
    }
    async with (
        receiver() as there,
        harness(any_redis_url, allow_private_addresses=True, transactions=settings) as here,
        running_node(here.runtime),
        sending(here),
    ):
        id = await here.start(webhook=there.url("good"), external_id="x")

        async def delivered() -> bool:
            return (await here.state(id)).webhook_delivered_ms is not None

        await eventually(delivered, 30)
        ((_, headers, body),) = there.got
        assert body["metadata"]["txId"] == id
        assert body["metadata"]["status"] == "success"
        sent_id, at = headers["webhook-id"], headers["webhook-timestamp"]
        assert sent_id == f"{id}:1"
        content = f"{sent_id}.{at}.".encode() + msgspec.json.encode(body)
        symmetric, asymmetric = headers["webhook-signature"].split()
        digest = hmac.digest(b"0123456789abcdef0123456789", content, hashlib.sha256)
        assert symmetric == f"v1,{base64.b64encode(digest).decode()}"
        signature = base64.b64decode(asymmetric.removeprefix("v1a,"))
        key.public_key().verify(signature, content)
        with pytest.raises(InvalidSignature):
            key.public_key().verify(signature, content + b"x")


async def test_progress_is_sent_before_the_end_if_asked_for(redis_url: str) -> None:
    async with (
        receiver() as there,
        harness(redis_url, allow_private_addresses=True) as here,
        running_node(here.runtime),
        sending(here),
    ):
        await here.define("p", {"type": "progress", "parameters": {"wait": True}})
        id = await here.start("p", webhook=there.url("good"), progress_reports=True)
        await eventually(lambda: len(there.about(id)) >= 1, 30)
        assert there.about(id)[0]["progressReport"] == {"percent": 50}
        await here.wait_for_status(id, "sleeping")
        await here.client.set_switch(id, "go", "1")
        await eventually(
            lambda: any(b["metadata"]["status"] == "success" for b in there.about(id)), 30
        )


@pytest.mark.parametrize("path", ["bad", "hangs", "redirects", "refused"])
async def test_a_receiver_that_misbehaves_costs_its_attempts_and_nothing_else(
    redis_url: str, path: str
) -> None:
    async with (
        receiver() as there,
        harness(redis_url, allow_private_addresses=True, transactions=QUICK) as here,
        sending(here) as service,
    ):
        url = there.url(path) if path != "refused" else "http://127.0.0.1:9/"
        (id,) = await _hooked(here, url)
        (good,) = await _hooked(here, there.url("good"))

        async def settled() -> bool:
            bad, fine = await here.state(id), await here.state(good)
            given_up = bad.webhook_given_up_ms is not None
            return given_up and fine.webhook_delivered_ms is not None

        await eventually(settled, 30)
        state = await here.state(id)
        assert state.webhook_tries == 2
        assert state.webhook_delivered_ms is None
        assert "good" in [path for path, _, _ in there.got]
        assert not there.about(id) or path != "refused"
        names = await here.event_names(id)
        assert names.count("webhook_tried") == names.count("webhook_failed") == 2
        assert names.count("webhook_given_up") == 1
        assert service.ready


async def test_an_endless_response_is_cut_off(redis_url: str) -> None:
    async with (
        receiver() as there,
        harness(redis_url, allow_private_addresses=True) as here,
        sending(here) as service,
    ):
        (id,) = await _hooked(here, there.url("endless"))
        await eventually(lambda: there.cut_off, 30)

        async def delivered() -> bool:
            return (await here.state(id)).webhook_delivered_ms is not None

        await eventually(delivered, 30)  # the status was 200
        assert service.ready


async def test_a_private_address_gets_no_request_unless_allowed(redis_url: str) -> None:
    async with receiver() as there, harness(redis_url, transactions=QUICK) as here, sending(here):
        url = there.url("good").replace(
            "127.0.0.1", "localhost"
        )  # a name, refused after its resolution
        (id,) = await _hooked(here, url)

        async def given_up() -> bool:
            return (await here.state(id)).webhook_given_up_ms is not None

        await eventually(given_up, 30)
        assert there.got == []
        assert "address_refused" in ((await here.state(id)).webhook_error or "")


async def test_the_administrator_is_alerted_by_webhook_and_metric(redis_url: str) -> None:
    async with receiver() as there:
        settings = {
            **QUICK,
            "max_webhook_retries": 1,
            "webhook_fail_limit": 2,
            "webhook_admin_url": there.url("admin"),
        }
        async with (
            harness(redis_url, allow_private_addresses=True, transactions=settings) as here,
            sending(here),
        ):
            before = _alerts_given_up()
            ids = await _hooked(here, there.url("bad"), 2)

            def alerts() -> list[Any]:
                return [body for path, _, body in there.got if path == "admin"]

            await eventually(lambda: len(alerts()) >= 3, 30)
            assert {each["type"] for each in alerts()} == {"webhook.given_up", "webhook.disabled"}
            assert {each.get("transactionId") for each in alerts()} == {*ids, None}
            assert _alerts_given_up() == before + 2


async def test_a_process_without_the_role_sends_nothing(redis_url: str) -> None:
    async with receiver() as there, harness(redis_url, allow_private_addresses=True) as here:
        await here.leases.webhooks(0, "another", [], 0)  # this process has the role now
        async with sending(here):
            (id,) = await _hooked(here, there.url("good"))
            await asyncio.sleep(0.5)  # nothing to wait for: nothing must happen
        assert there.got == []
        assert (await here.state(id)).webhook_tries == 0


async def test_a_process_that_stops_leaves_the_role_to_the_next(redis_url: str) -> None:
    async with receiver() as there, harness(redis_url, allow_private_addresses=True) as here:
        for actor in ("first", "second", "third"):
            here.runtime.actor = actor
            async with sending(here):
                (id,) = await _hooked(here, there.url("good"))

                async def delivered(id: str = id) -> bool:
                    return (await here.state(id)).webhook_delivered_ms is not None

                await eventually(delivered, 30)
        assert len(there.got) == 3


def test_invalid_signing_keys_are_refused() -> None:
    with pytest.raises(SigningKeyInvalid, match="whsec_"):
        hmac_signer("secret")
    with pytest.raises(SigningKeyInvalid, match="24 bytes"):
        hmac_signer("whsec_YWJj")
    with pytest.raises(SigningKeyInvalid, match="base64"):
        hmac_signer("whsec_&&&")
    with pytest.raises(SigningKeyInvalid, match="32 bytes"):
        ed25519_signer("whsk_YWJj")
    settings = load(transactions={"webhook_secret": "oops"})
    with pytest.raises(SettingInvalid, match="WEBHOOK_SECRET"):
        webhooks.signers_of(settings)


def test_the_signature_equals_the_published_example() -> None:
    """The example of the Standard Webhooks specification's own test suite."""
    sign = hmac_signer("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = headers_of(
        [sign], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
