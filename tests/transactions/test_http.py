"""Both HTTP APIs of the module: operations, refusals, long polls and event streams."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from angarium.transactions.archiver import Archiver
from tests.kit.eventually import eventually
from tests.transactions.api_client import ApiClient, api
from tests.transactions.harness import Harness, harness, running_node

HTTP: dict[str, Any] = {"http": {"port": 0}}


async def _start(http: ApiClient, pipeline: str = "one", **more: Any) -> str:
    status, body = await http.request("POST", "/v1/transactions", {"pipeline": pipeline, **more})
    assert status == 201, body
    return str(body["id"])


async def test_a_transaction_is_started_seen_and_awaited(any_redis_url: str) -> None:
    async with harness(any_redis_url, **HTTP) as here, api(here.runtime) as http:
        id = await _start(http, "two", data={"sum": 1}, owner="ann", external_id="é/1")
        status, body = await http.request("GET", f"/v1/transactions/{id}")
        assert (status, body["status"]) == (200, "queued")
        async with running_node(here.runtime):
            status, body = await http.request("GET", f"/v1/transactions/{id}?wait_s=30")
        assert (body["status"], body["output"]) == ("success", {"sum": 12})
        assert body["notified_ms"] >= body["completed_ms"]
        again = {"pipeline": "two", "owner": "ann", "external_id": "é/1"}
        assert await http.request("POST", "/v1/transactions", again) == (
            200,
            {"id": id, "duplicate": True},
        )


async def test_many_are_started_at_once_and_each_refusal_is_its_own(redis_url: str) -> None:
    async with harness(redis_url, **HTTP) as here, api(here.runtime) as http:
        batch = [{"pipeline": "one"}, {"pipeline": "missing"}, {"pipeline": "one"}]
        status, body = await http.request("POST", "/v1/transactions/batch", {"transactions": batch})
        first, second, third = body["transactions"]
        assert status == 200
        assert first["id"] != third["id"]
        assert second["problem"]["code"] == "pipeline_unknown"
        too_many = {"transactions": [{"pipeline": "one"}] * 1_001}
        status, body = await http.request("POST", "/v1/transactions/batch", too_many)
        assert (status, body["code"]) == (413, "limit_exceeded")


async def test_a_transaction_is_listed_switched_and_cancelled(redis_url: str) -> None:
    async with harness(redis_url, **HTTP) as here, api(here.runtime) as http:
        id = await _start(http)
        _, body = await http.request("GET", "/v1/transactions?status=queued&pipeline=one&limit=5")
        assert [each["id"] for each in body["transactions"]] == [id]
        switch = await http.request("PUT", f"/v1/transactions/{id}/switches/go", {"value": "1"})
        assert switch == (200, {"status": "set"})
        cancel = f"/v1/transactions/{id}/cancel"
        assert await http.request("POST", cancel) == (200, {"status": "cancelled"})
        status, body = await http.request("POST", cancel)
        assert (status, body["code"]) == (409, "transaction_finished")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/v1/transactions", {"pipeline": "missing"}, 404, "pipeline_unknown"),
        ("POST", "/v1/transactions", {"pipeline": "one", "version": 9}, 404, "pipeline_unknown"),
        ("POST", "/v1/transactions", {"pipeline": "a b"}, 400, "input_invalid"),
        ("POST", "/v1/transactions", {"pipelin": "one"}, 400, "input_invalid"),
        ("POST", "/v1/transactions", {"pipeline": "one", "owner": '"'}, 400, "input_invalid"),
        (
            "POST", "/v1/transactions",
            {"pipeline": "one", "webhook": "http://127.0.0.1:1/"}, 422, "address_refused",
        ),
        ("POST", "/v1/transactions", {"pipeline": "one", "webhook": "ftp://x"}, 400,
         "input_invalid"),
        ("POST", "/v1/transactions", {"pipeline": "one", "data": "x" * 1_100_000}, 413,
         "limit_exceeded"),
        ("GET", "/v1/transactions/nobody", None, 404, "transaction_unknown"),
        ("GET", "/v1/transactions/nobody?wait_s=1", None, 404, "transaction_unknown"),
        ("GET", "/v1/transactions/nobody?wait_s=x", None, 400, "input_invalid"),
        ("GET", "/v1/transactions/n%20body", None, 400, "name_invalid"),
        ("GET", "/v1/transactions/nobody/events", None, 404, "transaction_unknown"),
        ("POST", "/v1/transactions/nobody/cancel", None, 404, "transaction_unknown"),
        ("PUT", "/v1/transactions/nobody/switches/x", {}, 404, "transaction_unknown"),
        ("GET", "/v1/transactions?status=happy", None, 400, "input_invalid"),
        ("GET", "/v1/transactions?status=queued&limit=0", None, 400, "input_invalid"),
        ("GET", "/v1/pipelines/missing", None, 404, "pipeline_unknown"),
        ("PUT", "/v1/pipelines/p", {"name": "q", "steps": [{"type": "echo"}]}, 400,
         "input_invalid"),
        ("PUT", "/v1/pipelines/p", {"name": "p", "steps": []}, 422, "pipeline_invalid"),
        ("PUT", "/v1/pipelines/p", {"name": "p", "steps": [{"type": "nope"}]}, 422,
         "step_unknown"),
        ("PUT", "/v1/pipelines/p", {"name": "p", "steps": [{"pipeline": "p"}]}, 422,
         "pipeline_loops"),
        ("PUT", "/datp/1.0/tx/start/missing", {"data": {}}, 404, "pipeline_unknown"),
        ("PUT", "/datp/1.0/tx/start/one", {"metadata": {"reply": "http://10.0.0.1/"}}, 422,
         "address_refused"),
        ("PUT", "/datp/1.0/tx/start/one", {"metadata": {"poll": "medium"}}, 400,
         "input_invalid"),
        ("GET", "/datp/1.0/tx/status/nobody", None, 404, "transaction_unknown"),
        ("GET", "/datp/1.0/tx/status/nobody?reply=maybe", None, 400, "input_invalid"),
        ("GET", "/datp/1.0/tx/statusByExternalId/x", None, 404, "transaction_unknown"),
        ("GET", "/v1/transaction-statistics?level=rough", None, 400, "input_invalid"),
        ("GET", "/v1/transaction-watch?elders=x", None, 400, "input_invalid"),
    ],
)  # fmt: skip
async def test_bad_input_is_answered_with_a_problem(
    redis_url: str, method: str, path: str, body: Any, status: int, code: str
) -> None:
    async with harness(redis_url, **HTTP) as here, api(here.runtime) as http:
        answer = await http.request(method, path, body)
        assert (answer[0], answer[1]["code"]) == (status, code), answer
        assert await here.take() == []


async def test_pipelines_statistics_and_health_are_served(redis_url: str) -> None:
    async with harness(redis_url, **HTTP) as here, api(here.runtime) as http:
        definition = {"name": "new", "steps": [{"type": "echo", "parameters": {"a": [1]}}]}
        stored = await http.request("PUT", "/v1/pipelines/new", definition)
        assert stored == (200, {"name": "new", "version": 1})
        _, body = await http.request("GET", "/v1/pipelines/new")
        assert body["pipelines"][0]["steps"] == definition["steps"]
        _, body = await http.request("GET", "/v1/pipelines")
        assert {each["name"] for each in body["pipelines"]} == {"one", "two", "five", "new"}
        await _start(http, "new")
        _, body = await http.request("GET", "/v1/transaction-statistics?level=coarse")
        assert body["intervals"][0]["pipelines"]["new"] == {"started": 1}
        _, body = await http.request("GET", "/v1/transaction-watch")
        queue = next(each for each in body["queues"] if each["kind"] == "in")
        assert (queue["node_group"], queue["length"]) == ("default", 1)

        async def shown() -> bool:
            return "angarium_transactions{state=" in await http.metrics()

        await eventually(shown, 30)


# /datp/1.0


async def test_existing_clients_start_and_ask(redis_url: str) -> None:
    async with harness(redis_url, **HTTP) as here, api(here.runtime) as http:
        metadata = {"owner": "ann", "externalId": "x", "unknown": 1}
        body = {"metadata": metadata, "data": {"sum": 1}}
        _, started = await http.request("PUT", "/datp/1.0/tx/start/two", body)
        assert started["metadata"]["status"] == "running"
        assert started["data"] is None
        id = started["metadata"]["txId"]
        async with running_node(here.runtime):
            _, found = await http.request("GET", f"/datp/1.0/tx/status/{id}?reply=longpoll")
            by_id = "/datp/1.0/tx/statusByExternalId/x?owner=ann"

            async def recorded() -> bool:
                _, external = await http.request("GET", by_id)
                return bool(external == found)

            await eventually(recorded, 30)
        assert found["data"] == {"sum": 12}
        kept = found["metadata"]
        assert (kept["owner"], kept["externalId"], kept["transactionType"]) == ("ann", "x", "two")
        assert kept["completionTime"].endswith("Z")
        assert {"lastUpdated", "notifiedTime"} <= set(kept)
        _, repeat = await http.request("PUT", "/datp/1.0/tx/start/two", body)
        assert repeat["metadata"]["txId"] == id


@pytest.mark.parametrize("asked", [{"reply": "longpoll"}, {"poll": "long"}])
async def test_a_start_can_wait_for_the_end(redis_url: str, asked: dict[str, str]) -> None:
    async with (
        harness(redis_url, **HTTP) as here, api(here.runtime) as http, running_node(here.runtime),
    ):  # fmt: skip
        body = {"metadata": asked, "data": {"sum": 1}}
        _, found = await http.request("PUT", "/datp/1.0/tx/start/two", body)
        assert found["metadata"]["status"] == "success"
        assert found["data"] == {"sum": 12}


# Long polls


async def _complete(here: Harness) -> None:
    for taken in await here.take():
        await here.store.complete(taken, "success", b'{"ok":true}', "")


async def test_polls_before_during_and_after_the_end_are_all_answered(any_redis_url: str) -> None:
    """Pollers of two API services in this process."""
    async with (
        harness(any_redis_url, **HTTP) as here, api(here.runtime) as one, api(here.runtime) as two,
    ):  # fmt: skip
        for round in range(5):
            id = await _start(one)
            path = f"/datp/1.0/tx/status/{id}?reply=longpoll"
            early = [asyncio.ensure_future(http.request("GET", path)) for http in (one, two)]
            if round % 2:
                await asyncio.sleep(0.01 * round)
            ending = asyncio.ensure_future(_complete(here))
            during = asyncio.ensure_future(two.request("GET", path))
            await ending
            late = asyncio.ensure_future(one.request("GET", path))
            async with asyncio.timeout(30):
                answers = await asyncio.gather(*early, during, late)
            assert {body["metadata"]["status"] for _, body in answers} == {"success"}
            assert {body["data"]["ok"] for _, body in answers} == {True}
            assert all("notifiedTime" in body["metadata"] for _, body in answers)


async def test_a_poll_that_times_out_gets_the_current_state(redis_url: str) -> None:
    settings = {"longpoll_timeout_ms": 50}
    async with harness(redis_url, transactions=settings, **HTTP) as here, api(here.runtime) as http:
        id = await _start(http)
        _, body = await http.request("GET", f"/datp/1.0/tx/status/{id}?reply=longpoll")
        assert body["metadata"]["status"] == "running"
        assert "notifiedTime" not in body["metadata"]


@pytest.mark.limit("transaction_longpolls_items_max")
async def test_too_many_polls_are_refused(redis_url: str) -> None:
    limits = {"transaction_longpolls_items_max": 1}
    async with harness(redis_url, limits=limits, **HTTP) as here, api(here.runtime) as http:
        id = await _start(http)
        path = f"/v1/transactions/{id}?wait_s="
        polls = [asyncio.ensure_future(http.request("GET", f"{path}30")) for _ in range(2)]
        done, waiting = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        status, body = done.pop().result()
        assert (status, body["code"]) == (503, "overloaded")
        await _complete(here)
        assert (await waiting.pop())[1]["status"] == "success"


async def test_a_poll_cancels_the_webhook_if_asked_for(redis_url: str) -> None:
    async with harness(redis_url, **HTTP) as here, api(here.runtime) as http:
        metadata = {"webhook": "https://example.org/", "pollReplyCancelsWebhook": True}
        _, started = await http.request("PUT", "/datp/1.0/tx/start/one", {"metadata": metadata})
        id = started["metadata"]["txId"]
        await _complete(here)
        assert (await here.queries.health_report(["default"], 1)).webhooks == 1
        await http.request("GET", f"/datp/1.0/tx/status/{id}?reply=longpoll")

        async def cancelled() -> bool:
            return (await here.queries.health_report(["default"], 1)).webhooks == 0

        await eventually(cancelled, 30)
        assert "webhook_cancelled" in await here.event_names(id)


# Events


async def test_the_events_of_a_transaction_are_streamed_to_its_end(any_redis_url: str) -> None:
    async with harness(any_redis_url, **HTTP) as here, api(here.runtime) as http:
        await here.define("p", {"type": "progress", "parameters": {"wait": True}})
        id = await _start(http, "p")
        heard: list[tuple[str, Any]] = []

        async def follow() -> None:
            event = ""
            async for line in http.lines(f"/v1/transactions/{id}/events"):
                if line.startswith("event: "):
                    event = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    heard.append((event, json.loads(line.removeprefix("data: "))))

        following = asyncio.ensure_future(follow())
        await eventually(lambda: heard, 30)
        async with running_node(here.runtime):
            await here.wait_for_status(id, "sleeping")
            await eventually(lambda: any(s["status"] == "sleeping" for _, s in heard), 30)
            await here.client.set_switch(id, "go", "1")
            async with asyncio.timeout(30):
                await following
    assert heard[0][0] == "state"
    assert heard[0][1]["status"] == "queued"
    assert heard[-1][1]["status"] == "success"
    assert any(state["progress"] == {"percent": 50} for _, state in heard)


async def test_a_poll_by_external_id_after_the_end_counts_as_notification(redis_url: str) -> None:
    async with harness(redis_url, **HTTP) as here, api(here.runtime) as http:
        metadata = {
            "externalId": "mine", "webhook": "https://example.org/",
            "pollReplyCancelsWebhook": True,
        }  # fmt: skip
        await http.request("PUT", "/datp/1.0/tx/start/one", {"metadata": metadata})
        await _complete(here)
        _, body = await http.request("GET", "/datp/1.0/tx/statusByExternalId/mine?reply=longpoll")
        assert "notifiedTime" in body["metadata"]

        async def cancelled() -> bool:
            return (await here.queries.health_report(["default"], 1)).webhooks == 0

        await eventually(cancelled, 30)


async def test_an_archived_transaction_is_finished_and_not_unknown(redis_url: str) -> None:
    settings = {"delay_before_archiving": 0}
    async with harness(redis_url, transactions=settings, **HTTP) as here, api(here.runtime) as http:
        id = await _start(http)
        await _complete(here)
        archiver = Archiver(here.runtime, here.client.archive)
        while (await archiver.run_once(0)).stored:
            pass
        assert await here.store.find(id) is None
        for method, path, body in (
            ("POST", f"/v1/transactions/{id}/cancel", None),
            ("PUT", f"/v1/transactions/{id}/switches/go", {"value": "1"}),
        ):
            status, problem = await http.request(method, path, body)
            assert (status, problem["code"]) == (409, "transaction_finished")


async def test_a_stream_sends_every_event(redis_url: str) -> None:
    async with harness(redis_url, **HTTP) as here, api(here.runtime) as http:
        id = await _start(http, "two")
        heard: list[str] = []

        async def follow() -> None:
            async for line in http.lines(f"/v1/transactions/{id}/events"):
                if line.startswith("event: "):
                    heard.append(line.removeprefix("event: "))

        following = asyncio.ensure_future(follow())
        await eventually(lambda: heard, 30)
        (taken,) = await here.take()
        await asyncio.gather(
            *(here.store.report_progress(id, taken.run, b"%d" % n) for n in range(5)),
            here.store.checkpoint(id, taken.run, 1, b"1 0 {}"),
        )
        await here.store.complete(taken, "success", b"{}", "")
        async with asyncio.timeout(30):
            await following
    assert heard[0] == "state"
    assert heard[-1] == "completed"
    assert [each for each in heard if each != "state"] == [
        "taken", *["progressed"] * 5, "advanced", "completed",
    ]  # fmt: skip
