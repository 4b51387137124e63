"""Long polls, queues, archive, webhooks and tenants of transactions."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from angarium.runtime.errors import SettingInvalid
from angarium.transactions.archiver import Archiver
from angarium.transactions.errors import TransactionQueueFull
from angarium.transactions.model import TransactionStatus
from angarium.transactions.webhooks import host_of, owner_signers_of
from tests.kit.clock import FakeClock
from tests.kit.sample import sample_settings
from tests.transactions.api_client import api
from tests.transactions.harness import Harness, harness, running_node

SECRET = "whsec_" + base64.b64encode(b"x" * 32).decode()


@pytest.mark.limit("transaction_queue_items_max")
async def test_f22_a_full_queue_refuses_starts_and_takes_them_again_later(redis_url: str) -> None:
    async with harness(redis_url, limits={"transaction_queue_items_max": 5}) as here:
        for _ in range(5):
            await here.start(external_id=None)
        with pytest.raises(TransactionQueueFull) as refused:
            await here.start(external_id="x")
        assert (refused.value.code, refused.value.http_status) == ("queue_full", 503)
        assert await here.store.find_by_external_id("default", "x") is None
        await here.start(admin=True)  # an operator's own work is not refused
        assert len(await here.take(count=2)) == 2
        await here.start(external_id="x")
        waiting = await here.store.dequeue(0, "n1", ["default"], 10, _no_steps())
        assert waiting.waiting == 5
        with pytest.raises(TransactionQueueFull):
            await here.start()


def _no_steps() -> Any:
    from angarium.transactions.node_work import NodeCapabilities

    return NodeCapabilities(" ")


async def test_f22_the_archive_removes_what_is_older_than_its_retention(redis_url: str) -> None:
    clock = FakeClock()
    settings = {"delay_before_archiving": 0, "archive_retention": 100}
    async with harness(redis_url, clock=clock, transactions=settings) as here:
        archiver = Archiver(here.runtime, here.client.archive)
        old = await here.completed(3)
        await clock.advance(60)
        new = await here.completed(2)
        for _ in range(2):
            await archiver.run_once(0)
        assert (await archiver.sweep()).removed == 0
        await clock.advance(50)
        assert (await archiver.sweep()).removed == 3
        found = await here.client.archive.page(TransactionStatus.SUCCESS, 10)
        assert {each.id for each in found} == set(new)
        assert not set(old) & set(new)


async def test_f22_progress_answers_a_long_poll(redis_url: str) -> None:
    async with (
        harness(redis_url, http={"port": 0}) as here,
        running_node(here.runtime),
        api(here.runtime) as http,
    ):
        await here.define("slow", {"type": "progress", "parameters": {"wait": True}})
        status, body = await http.request(
            "PUT", "/datp/1.0/tx/start/slow", {"metadata": {"poll": "long"}, "data": {}}
        )
        assert (status, body["progressReport"]) == (200, {"percent": 50})
        assert body["metadata"]["status"] in ("running", "sleeping")


async def test_f22_tenants_use_datp_and_the_look_up_by_external_id(redis_url: str) -> None:
    tokens = ["write@ann:ann-w", "write@bob:bob-w"]
    async with (
        harness(redis_url, http={"port": 0, "tokens": tokens}) as here,
        api(here.runtime) as http,
    ):
        start = {"metadata": {"owner": "ann", "externalId": "x"}, "data": {}}
        path = "/datp/1.0/tx/start/one"
        assert (await http.request("PUT", path, start, "bob-w"))[0] == 403
        status, body = await http.request("PUT", path, start, "ann-w")
        assert status == 200
        id = body["metadata"]["txId"]
        for look_up in (
            f"/datp/1.0/tx/status/{id}",
            "/datp/1.0/tx/statusByExternalId/x?owner=ann",
            "/v1/transactions/by-external-id/x?owner=ann",
        ):
            status, body = await http.request("GET", look_up, token="ann-w")
            assert status == 200, look_up
            assert id in (body.get("id"), body.get("metadata", {}).get("txId"))
            assert (await http.request("GET", look_up, token="bob-w"))[0] in (403, 404), look_up


def test_f22_an_owner_may_have_a_secret_of_its_own() -> None:
    settings = sample_settings("redis://x", transactions={"webhook_secrets": [f"ann={SECRET}"]})
    assert list(owner_signers_of(settings)) == ["ann"]
    for wrong in ("ann", "ann=x", f"a b={SECRET}"):
        settings = sample_settings("redis://x", transactions={"webhook_secrets": [wrong]})
        with pytest.raises(SettingInvalid):
            owner_signers_of(settings)


async def _hooked(here: Harness, url: str, count: int) -> None:
    for _ in range(count):
        id = await here.start(webhook=url)
        await here.store.cancel(id)


async def test_f22_one_receiver_gets_its_share_of_the_slots(redis_url: str) -> None:
    settings = {"webhook_receiver_concurrency": 3}
    async with harness(redis_url, transactions=settings) as here:
        await _hooked(here, "https://slow.example:8443/a?b", 10)
        await _hooked(here, "https://quick.example/hook", 2)
        batch = await here.leases.webhooks(0, "w1", [], 64)
        hosts = [host_of(each.url) for each in batch.webhooks]
        assert (hosts.count("slow.example:8443"), hosts.count("quick.example")) == (3, 2)
        assert {each.attempt for each in batch.webhooks} == {1}
        await _hooked(here, "https://slow.example:8443/c", 1)
        batch = await here.leases.webhooks(0, "w1", [], 64, "", {"slow.example:8443": 3})
        assert batch.webhooks == []
