"""A relay and a deliverer that work as the published ones do, for comparison.

The published services are not on PyPI, so these follow their documented steps in our own words:
each POST asks and writes Redis one command at a time, and the deliverer takes one message at a
time with a client of its own. Run as `python -m benchmarks.routing_peer relay|deliverer URL`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

import aiohttp
import redis.asyncio
from aiohttp import web


def _say(role: str, **ports: int) -> None:
    print(json.dumps({"role": role, "ready": True, "ports": ports}), flush=True)


def _key_of(body: bytes) -> str:
    outer = json.loads(body)
    header = json.loads(base64.urlsafe_b64decode(outer["protected"] + "=="))
    return ",".join(each["header"]["kid"] for each in header["recipients"])


async def _route(client: redis.asyncio.Redis, key: str) -> None:
    """One owner, never stale: the shortest way through the published code."""
    link: Any = client
    if await link.hexists("recip_key_uid_map", key):
        uid = (await link.hget("recip_key_uid_map", key)).decode()
    else:
        uid = "peer"
        await link.hset("recip_key_uid_map", key, uid)
        await link.hset("uid_recip_key_pending_msg_count", f"{uid}_{key}", 0)
    heard = await link.hget("uid_last_access_map", uid)
    if heard is not None:
        at = datetime.strptime(heard.decode(), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        assert (datetime.now(UTC) - at).total_seconds() > -60
    await link.hincrby("uid_recip_key_pending_msg_count", f"{uid}_{key}", 1)


async def relay(url: str) -> None:
    client = redis.asyncio.Redis.from_url(url)
    link: Any = client
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    await link.hset("uid_last_access_map", "peer", now)

    async def post(request: web.Request) -> web.Response:
        body = await request.read()
        key = _key_of(body)
        logging.info("message from %s", request.remote)
        item = {"payload": base64.urlsafe_b64encode(body).decode(), "transport_type": "http"}
        await _route(client, key)
        await link.rpush(f"acapy_inbound_{key}", json.dumps(item))
        return web.Response()

    app = web.Application()
    app.add_routes([web.post("/", post)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    _say("relay", http=runner.addresses[0][1])
    await asyncio.Event().wait()


async def deliverer(url: str) -> None:
    client = redis.asyncio.Redis.from_url(url)
    link: Any = client
    _say("deliverer")
    while True:
        found = await link.blpop("acapy_outbound", 0.2)
        if not found:
            continue
        item = json.loads(found[1])
        payload = base64.urlsafe_b64decode(item["payload"])
        connector = aiohttp.TCPConnector(limit=200, limit_per_host=50)
        jar = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(
            connector=connector, cookie_jar=jar, trust_env=True
        ) as session:
            url_ = item["service"]["url"]
            async with session.post(url_, data=payload, headers=item["headers"]) as answer:
                assert 200 <= answer.status < 300
        logging.info("delivered to %s", url_)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s | %(levelname)s: %(message)s", level=logging.INFO)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run({"relay": relay, "deliverer": deliverer}[sys.argv[1]](sys.argv[2]))
