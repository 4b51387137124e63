"""One message through all modules, in role processes of their own, is one trace at a collector."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from angarium.demo.app import PIPELINE, SWITCH
from angarium.pickup.client import PickupClient
from tests.kit.collector import Collector, Span
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.routing.harness import envelope

DEADLINE_S = 60.0
TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
APP = "angarium.demo.app:app"
# The spans of one message, each with the name of its parent.
PARENTS = {
    "api enqueue_messages": "the caller",
    "dispatch accept": "api enqueue_messages",
    "dispatch send": "dispatch accept",
    "dispatch work": "dispatch accept",
    "conversations request": "dispatch work",
    "transactions start": "dispatch work",
    "transactions step greet": "transactions start",
    "transactions step consult": "transactions start",
    "conversations reply": "transactions step …",
    "conversations send": "conversations reply",
    "pickup add": "conversations send",
    "pickup delivered": "conversations reply",
}


def environment(redis_url: str, collector: Collector, **more: str) -> dict[str, str]:
    return {
        "ANGARIUM_REDIS_URL": redis_url,
        "ANGARIUM_PREFIX": f"t{secrets.token_hex(4)}:",
        "ANGARIUM_HTTP__PORT": "0",
        "ANGARIUM_PICKUP__PORT": "0",
        "ANGARIUM_DISPATCH__ACK_PORT": "0",
        "ANGARIUM_ALLOW_PRIVATE_ADDRESSES": "true",
        **collector.env,
        **more,
    }


class Expert:
    """An external HTTP service that records each call and its trace."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.url = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_post("/", self._record)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        try:
            yield
        finally:
            await runner.cleanup()

    async def _record(self, request: web.Request) -> web.Response:
        question = await request.json()
        self.asked.append((question["transaction_id"], request.headers.get("traceparent")))
        return web.json_response({})


async def test_a_message_is_one_trace_from_the_caller_to_the_recipient(redis_url: str) -> None:
    expert = Expert()
    async with AsyncExitStack() as stack:
        collector = await stack.enter_async_context(Collector())
        await stack.enter_async_context(expert.open())
        removed = {"ANGARIUM_CONVERSATIONS__PICKUP_DELIVERED": "removed"}
        env = environment(redis_url, collector, **removed)
        ports: dict[str, int] = {}
        for roles in (
            ["api"], ["dispatcher"], ["worker"], ["node", "webhooks"], ["conversations"],
            ["gateway"],
        ):  # fmt: skip
            arguments = ["serve", *roles, "--app", APP]
            role = RoleProcess(arguments, env, ready_lines=len(roles), deadline_s=DEADLINE_S)
            ports |= (await stack.enter_async_context(role)).ports
        api = f"http://127.0.0.1:{ports['http']}"
        session = await stack.enter_async_context(aiohttp.ClientSession(api))
        message_id = await _send_question(session, expert, ports["gateway"])

        async def all_spans() -> bool:
            names = [each.name for each in collector.trace(TRACE)]
            return set(names) >= set(PARENTS) and names.count("pickup delivered") == 2

        await eventually(all_spans, DEADLINE_S)
        async with session.get("/v1/search", params={"id": message_id}) as answer:
            assert (await answer.json())["trace_id"] == TRACE
    _check_spans(collector.trace(TRACE), message_id)
    # The step passes its own span to the expert.
    asking = {each.span_id for each in collector.spans if each.name == "transactions step consult"}
    assert {str(header).split("-")[2] for _, header in expert.asked} <= asking


async def _send_question(session: aiohttp.ClientSession, expert: Expert, gateway: int) -> str:
    """Send one question, set its switch, and remove both replies. Return the message's id."""
    async with session.put("/v1/pipelines/support", json=PIPELINE) as answer:
        assert answer.status == 200, await answer.text()
    payload = {"user": "anna", "number": 1, "expert": expert.url}
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
    async with session.post("/v1/messages", json={"payload": payload}, headers=headers) as answer:
        assert answer.status == 202, await answer.text()

    async def was_asked() -> bool:
        return bool(expert.asked)

    await eventually(was_asked, DEADLINE_S)
    transaction_id = expert.asked[0][0]
    path = f"/v1/transactions/{transaction_id}"
    async with session.get(path) as answer:
        message_id = str((await answer.json())["external_id"])
    async with session.put(f"{path}/switches/{SWITCH}", json={"value": "42"}) as answer:
        assert answer.status == 200, await answer.text()
    removed: set[str] = set()
    async with PickupClient(f"ws://127.0.0.1:{gateway}/") as recipient:

        async def took_both() -> bool:
            found = await recipient.take_from_queue("anna")
            ids = [each.id for each in found]
            if ids:
                await recipient.remove_messages("anna", ids)
                removed.update(ids)
            return len(removed) == 2

        await eventually(took_both, DEADLINE_S)
    return message_id


def _check_spans(spans: list[Span], message_id: str) -> None:
    by_id = {each.span_id: each for each in spans}
    for each in spans:
        parent = by_id.get(each.parent_id)
        name = parent.name if parent is not None else "the caller"
        wanted = PARENTS.get(each.name)
        assert wanted is not None, each
        if wanted.endswith("…"):
            assert name.startswith(wanted[:-1]), (each, name)
        else:
            assert name == wanted, (each, name)
        assert each.end_ns >= each.start_ns
        assert not each.failed
        assert each.service == "angarium"
    outermost = [each for each in spans if each.parent_id not in by_id]
    assert {each.parent_id for each in outermost} == {CALLER}
    # Each role has its own process.
    assert len({each.instance for each in spans}) == 5
    accepted = next(each for each in spans if each.name == "dispatch accept")
    assert accepted.values["angarium.message_id"] == message_id


async def test_without_a_callers_trace_messages_and_transactions_begin_their_own_trace(
    redis_url: str,
) -> None:
    async with AsyncExitStack() as stack:
        collector = await stack.enter_async_context(Collector())
        env = environment(redis_url, collector)
        roles = ["api", "dispatcher", "worker", "node"]
        arguments = ["serve", *roles, "--app", "tests.dashboard.app:app"]
        role = RoleProcess(arguments, env, ready_lines=len(roles), deadline_s=DEADLINE_S)
        ports = (await stack.enter_async_context(role)).ports
        session = await stack.enter_async_context(
            aiohttp.ClientSession(f"http://127.0.0.1:{ports['http']}")
        )
        pipeline = {"name": "one", "steps": [{"type": "ship"}]}
        await _call(session, "PUT", "/v1/pipelines/one", pipeline)
        started = await _call(session, "POST", "/v1/transactions", {"pipeline": "one"})
        await _call(session, "POST", "/v1/messages", {"payload": {"fail": "no luck"}})

        async def spans_arrived() -> bool:
            names = {each.name for each in collector.spans}
            return names >= {"dispatch work", "dispatch accept", "transactions step ship"}

        await eventually(spans_arrived, DEADLINE_S)
    step = next(each for each in collector.spans if each.name == "transactions step ship")
    start = next(each for each in collector.spans if each.name == "transactions start")
    assert step.trace_id == start.trace_id == started["id"].replace("-", "")[:32]
    assert (start.parent_id, step.parent_id) == ("", start.span_id)
    accept = next(each for each in collector.spans if each.name == "dispatch accept")
    work = next(each for each in collector.spans if each.name == "dispatch work")
    assert accept.trace_id == accept.values["angarium.message_id"].replace("-", "")
    assert (accept.parent_id, work.parent_id) == ("", accept.span_id)
    assert work.failed == "ValueError: no luck"


async def test_relay_deliverer_and_gateway_add_spans_to_the_messages_trace(
    redis_url: str, tmp_path: Path
) -> None:
    receiver = Expert()
    async with AsyncExitStack() as stack:
        collector = await stack.enter_async_context(Collector())
        await stack.enter_async_context(receiver.open())
        database = f"sqlite:///{tmp_path}/angarium.sqlite"
        env = {**environment(redis_url, collector), "ANGARIUM_DATABASE_URL": database}
        ports: dict[str, int] = {}
        for name in ("relay", "inbox", "deliverer", "gateway", "api"):
            arguments = ["serve", name, "--app", "tests.dashboard.app:app"]
            role = RoleProcess(arguments, env, deadline_s=DEADLINE_S)
            await stack.enter_async_context(role)
            ports |= {f"{name} {port}": number for port, number in role.ports.items()}
        session = await stack.enter_async_context(
            aiohttp.ClientSession(f"http://127.0.0.1:{ports['api http']}")
        )
        relay = f"http://127.0.0.1:{ports['relay http']}/"
        async with session.post(relay, data=envelope("key-of-bob")) as answer:
            assert answer.status == 200
        delivery = {"url": receiver.url, "payload": "eyJ0cmFuc2FjdGlvbl9pZCI6ICJuIn0"}
        headers = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
        async with session.post("/v1/routing/deliveries", json=delivery, headers=headers) as answer:
            assert answer.status == 202
        async with PickupClient(f"ws://127.0.0.1:{ports['gateway gateway']}/") as mediator:
            pickup_id = await mediator.add_message("anna", ["did:anna"], {"hello": "anna"})
            assert [each.id for each in await mediator.take_from_queue("anna")] == [pickup_id]
            await mediator.remove_messages("anna", [pickup_id])
        wanted = {f"routing {each}" for each in ("accept", "inbox", "send", "deliver")}
        wanted |= {f"pickup {each}" for each in ("add", "send", "delivered")}
        wanted.add("api queue_delivery")

        async def all_spans() -> bool:
            return {each.name for each in collector.spans} >= wanted

        await eventually(all_spans, DEADLINE_S)
        async with session.get("/v1/search", params={"id": pickup_id}) as answer:
            assert (await answer.json())["trace_id"] == pickup_id
    spans = {each.name: each for each in collector.spans}
    assert len(collector.spans) == len(wanted)
    for name, parent in (
        ("routing inbox", "routing accept"), ("routing deliver", "routing send"),
        ("routing send", "api queue_delivery"), ("pickup send", "pickup add"),
        ("pickup delivered", "pickup add"),
    ):  # fmt: skip
        assert spans[name].parent_id == spans[parent].span_id, name
        assert spans[name].trace_id == spans[parent].trace_id, name
        assert not spans[name].failed
    assert spans["routing accept"].parent_id == spans["pickup add"].parent_id == ""
    assert spans["pickup add"].trace_id == pickup_id
    assert spans["api queue_delivery"].parent_id == CALLER
    ((_, traceparent),) = receiver.asked
    assert str(traceparent).split("-")[1] == TRACE


async def _call(session: aiohttp.ClientSession, method: str, path: str, body: Any) -> Any:
    async with session.request(method, path, json=body) as answer:
        assert answer.status < 300, await answer.text()
        return await answer.json()


async def test_messages_are_processed_without_a_collector_and_with_an_unsampled_trace(
    redis_url: str,
) -> None:
    async with Collector() as collector:
        away = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
        for endpoint, flags in ((away, "01"), (collector.env, "00")):
            env = environment(redis_url, collector, **endpoint)
            roles = ["api", "dispatcher", "worker"]
            arguments = ["serve", *roles, "--app", "tests.dashboard.app:app"]
            async with RoleProcess(arguments, env, ready_lines=3, deadline_s=DEADLINE_S) as role:
                url = f"http://127.0.0.1:{role.ports['http']}"
                async with aiohttp.ClientSession(url) as session:
                    header = {"traceparent": f"00-{TRACE}-{CALLER}-{flags}"}
                    for number in range(3):
                        body = {"payload": {"n": number}}
                        async with session.post("/v1/messages", json=body, headers=header) as sent:
                            assert sent.status == 202

                    async def all_done() -> bool:
                        found = await _call(session, "GET", "/v1/dispatch", None)
                        return bool(found["partitions"][0]["processed"] == 3)

                    await eventually(all_done, DEADLINE_S)
                role.terminate()
                assert role.returncode == 0, role.stderr()
    assert collector.spans == []
