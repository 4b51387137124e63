"""Webhooks as their receiver checks them: replayed, altered, or signed by somebody else."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from aiohttp import web
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from angarium.transactions.webhooks import WebhookSender
from tests.kit.eventually import eventually
from tests.transactions.harness import harness, running_node

PATIENCE_S = 60.0
TOLERANCE_S = 300
KEY = b"0123456789abcdef0123456789"
PRIVATE = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
SETTINGS: dict[str, Any] = {
    "webhook_secret": "whsec_" + base64.b64encode(KEY).decode(),
    "webhook_private_key": "whsk_" + base64.b64encode(b"k" * 32).decode(),
    "webhook_retry_delay_ms": 1,
    "webhook_retry_factor": 1.0,
    "max_webhook_retries": 3,
}


class Refused(Exception):
    """The receiver does not believe it."""


def verify(
    headers: Mapping[str, str],
    body: bytes,
    key: bytes = KEY,
    public: Ed25519PublicKey | None = None,
    now_s: float | None = None,
) -> None:
    """What a receiver does, written from the published scheme and from nothing of ours."""
    stamp = headers["webhook-timestamp"]
    if abs((time.time() if now_s is None else now_s) - int(stamp)) > TOLERANCE_S:
        raise Refused("too old or from the future")
    content = f"{headers['webhook-id']}.{stamp}.".encode() + body
    wanted = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    shown = [each.partition(",") for each in headers["webhook-signature"].split()]
    for version, _, signature in shown:
        if version == "v1" and hmac.compare_digest(signature, wanted):
            return
        if version == "v1a" and public is not None:
            try:
                public.verify(base64.b64decode(signature), content)
            except InvalidSignature:
                continue
            return
    raise Refused("no signature fits")


Call = tuple[dict[str, str], bytes]


async def calls(redis_url: str) -> list[Call]:
    """Three attempts at one webhook, the last of which is taken."""
    got: list[Call] = []

    async def receive(request: web.Request) -> web.Response:
        got.append(({k.lower(): v for k, v in request.headers.items()}, await request.read()))
        return web.Response(status=204 if len(got) == 3 else 500)

    app = web.Application()
    app.router.add_post("/hook", receive)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        async with (
            harness(redis_url, transactions=SETTINGS, allow_private_addresses=True) as here,
            running_node(here.runtime),
        ):
            webhooks = WebhookSender(here.runtime)
            await webhooks.start()
            try:
                await here.start("one", webhook=url)
                await eventually(lambda: len(got) >= 3, PATIENCE_S)
            finally:
                await webhooks.stop(5)
    finally:
        await runner.cleanup()
    return got


async def test_each_attempt_can_be_checked_and_nothing_of_it_altered(redis_url: str) -> None:
    got = await calls(redis_url)
    # The same event under one id, so that a receiver takes it once; signed anew for each attempt.
    assert len({headers["webhook-id"] for headers, _ in got}) == 1
    for headers, body in got:
        verify(headers, body)
        verify(headers, body, b"x" * 24, PRIVATE.public_key())
        for alter in ALTERATIONS:
            with pytest.raises((Refused, ValueError, KeyError)):
                verify(*alter(dict(headers), body), public=PRIVATE.public_key())
        with pytest.raises(Refused):
            verify(headers, body, b"another key of 24 bytes.")
        with pytest.raises(Refused):
            verify(headers, body, b"x" * 24, Ed25519PrivateKey.generate().public_key())
        # A replay: what was true then is not taken later, nor before its time.
        for seconds in (TOLERANCE_S + 60, -TOLERANCE_S - 60):
            with pytest.raises(Refused):
                verify(headers, body, now_s=time.time() + seconds)


def _with(name: str, change: Callable[[str], str]) -> Callable[[dict[str, str], bytes], Call]:
    return lambda headers, body: ({**headers, name: change(headers[name])}, body)


ALTERATIONS: list[Callable[[dict[str, str], bytes], Call]] = [
    lambda headers, body: (headers, body + b" "),
    lambda headers, body: (headers, body.replace(b"success", b"failure") + b"\n"),
    lambda headers, body: (headers, b""),
    _with("webhook-id", lambda text: text + "0"),
    # A replay with a fresh time: the time is signed too.
    _with("webhook-timestamp", lambda text: str(int(text) + 1)),
    _with("webhook-signature", lambda text: " ".join(each[:-4] + "AAAA" for each in text.split())),
    _with("webhook-signature", lambda _: "v1,"),
    _with("webhook-signature", lambda _: "v2," + base64.b64encode(b"x" * 32).decode()),
]
