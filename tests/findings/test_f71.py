"""F71: `/datp/1.0` shows no inner states: what is queued is `running` there."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.findings.test_f16 import receiver
from tests.findings.transactions_deployment import DEADLINE_S, deployment
from tests.kit.eventually import eventually
from tests.transactions.api_client import api_client


async def test_a_queued_transaction_is_running_on_datp_and_queued_on_v1(
    redis_url: str, tmp_path: Path
) -> None:
    env = {"ANGARIUM_TRANSACTIONS__LONGPOLL_TIMEOUT_MS": "50"}
    async with deployment(redis_url, tmp_path) as here, here.role("api", **env) as api:
        await here.define("payment", "charge")
        async with api_client(api.ports["http"]) as http:
            start = "/datp/1.0/tx/start/payment"
            for metadata in ({}, {"reply": "longpoll"}):
                _, started = await http.request("PUT", start, {"metadata": metadata, "data": {}})
                assert started["metadata"]["status"] == "running"
            named = {"metadata": {"externalId": "x"}}
            _, started = await http.request("PUT", start, named)
            id = started["metadata"]["txId"]
            for path in (f"status/{id}", "statusByExternalId/x"):
                for query in ("", "?reply=longpoll"):
                    _, found = await http.request("GET", f"/datp/1.0/tx/{path}{query}")
                    assert found["metadata"]["status"] == "running"
            _, again = await http.request("PUT", start, named)
            assert again["metadata"]["status"] == "running"
            assert (await http.request("GET", f"/v1/transactions/{id}"))[1]["status"] == "queued"
            listed = (await http.request("GET", "/v1/transactions?status=queued"))[1][
                "transactions"
            ]
            assert len(listed) == 3


async def test_states_that_the_known_system_shows_stay(redis_url: str, tmp_path: Path) -> None:
    async with deployment(redis_url, tmp_path) as here, here.role("api") as api, here.node("old"):
        await here.define("payment", "wait_for_bank")
        (id,) = await here.start("payment")
        await here.wait_for_status(id, "sleeping")
        async with api_client(api.ports["http"]) as http:
            _, found = await http.request("GET", f"/datp/1.0/tx/status/{id}")
            assert found["metadata"]["status"] == "sleeping"
            await here.client.set_switch(id, "go", "1")
            await here.ended([id])
            _, found = await http.request("GET", f"/datp/1.0/tx/status/{id}")
            assert found["metadata"]["status"] == "success"


async def test_a_webhook_about_progress_shows_no_inner_state(
    redis_url: str, tmp_path: Path
) -> None:
    """The report is sent when its transaction is queued again: its node was told to stop."""
    async with deployment(redis_url, tmp_path) as here, receiver() as hooks:
        await here.define("payment", "report_and_wait")
        env = {"ANGARIUM_TRANSACTIONS__NODE_GRACE_MS": "1"}
        async with here.role("api") as api, api_client(api.ports["http"]) as http:
            metadata = {"webhook": hooks.url, "progressReports": True}
            start = {"metadata": metadata, "data": {}}
            app = "tests.findings.two_applications:reporting"
            async with here.role("node", "--app", app, **env) as node:
                _, started = await http.request("PUT", "/datp/1.0/tx/start/payment", start)
                id = started["metadata"]["txId"]

                async def reported() -> bool:
                    return bytes((await here.client.get(id)).progress) == b'{"percent":50}'

                await eventually(reported, DEADLINE_S)
                assert await asyncio.to_thread(node.terminate) == 0
            await here.wait_for_status(id, "queued")
            async with here.role("webhooks"):
                await eventually(lambda: hooks.bodies, DEADLINE_S)
        assert hooks.bodies[0]["metadata"]["status"] == "running"
        assert hooks.bodies[0]["progressReport"] == {"percent": 50}
