"""HTTP operations of dispatch: intake, status, dead letters, and refusals."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from angarium.dispatch import keys
from angarium.dispatch.dead_letters import SHOWN_BYTES_MAX
from angarium.dispatch.epochs import digest
from angarium.dispatch.gauges import DispatchGauges
from angarium.dispatch.http import http_api
from angarium.dispatch.message_ids import new_ids, partition_of_id
from angarium.dispatch.store import DispatchStore
from angarium.runtime.application import Application
from angarium.runtime.dead_letters import PAGE_MAX
from angarium.runtime.errors import RedisUnavailable
from angarium.runtime.lease import Lease
from angarium.runtime.runtime import Runtime
from angarium.server.http import Api
from tests.dispatch.harness import StoreHarness, dispatch_services
from tests.kit.roles import RoleProcess
from tests.kit.sample import sample_runtime

MESSAGES = "/v1/messages"
DEAD = "/v1/dispatch/dead"
UNKNOWN = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True)
class ApiResponse:
    status: int
    type: str
    body: Any


class ApiHarness:
    """An API role with the HTTP API of dispatch, and its store."""

    def __init__(self, runtime: Runtime, http: aiohttp.ClientSession, url: str) -> None:
        self.runtime = runtime
        self.store = DispatchStore(runtime)
        self._http = http
        self._url = url

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ApiResponse:
        async with self._http.request(
            method, self._url + path, data=body, headers=headers
        ) as response:
            data = await response.read()
            kind = response.headers.get("content-type", "")
            return ApiResponse(response.status, kind, json.loads(data) if "json" in kind else data)

    async def post(
        self, body: bytes | object, headers: Mapping[str, str] | None = None
    ) -> ApiResponse:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.ask("POST", MESSAGES, data, headers)

    async def inbox(self) -> dict[str, bytes]:
        """Message id → payload of all messages in the durable intake."""
        found = {}
        for partition in range(self.store.partitions):
            name = self.runtime.keyspace.name(keys.MESSAGES_INBOX, partition)
            for _, values in await self.runtime.redis.call("XRANGE", name, "-", "+", key=name):
                fields = dict(zip(values[::2], values[1::2], strict=True))
                message_id = fields[b"message_id"].decode()
                assert partition_of_id(message_id.encode(), self.store.partitions) == partition
                found[message_id] = fields[b"payload"]
        return found

    async def die(self, payload: bytes, reason: str, partition: int = 0) -> str:
        """Make a message a dead letter by rejecting it; its id."""
        lease = Lease(self.runtime, self.store.lease_keys(partition), 60_000)
        assert await lease.acquire()
        (message_id,) = new_ids(1, partition, self.store.partitions)
        batch = [(message_id, payload)]
        accepted = await self.store.accept(partition, lease.term, 1, batch, digest(payload), 1)
        assert accepted == (1, 0)
        harness = StoreHarness(self.runtime, self.store, partition, lease.term)
        assert await harness.reject(message_id, reason) == "dead"
        await lease.release()
        return message_id.decode()


@asynccontextmanager
async def api_harness(redis_url: str, **overrides: Any) -> AsyncIterator[ApiHarness]:
    overrides.setdefault("dispatch", {"deliveries_max": 1})
    async with sample_runtime(redis_url, http={"port": 0}, **overrides) as runtime:
        api = Api(runtime, [http_api(runtime, Application())])
        await api.start()
        async with aiohttp.ClientSession() as http:
            yield ApiHarness(runtime, http, f"http://127.0.0.1:{api.ports['http']}")
        await api.stop(30)


# Intake


async def test_the_intake_keeps_the_bytes_of_the_payload(any_redis_url: str) -> None:
    payload = '{"b": 1.00,  "a":[ "é" , null], "a": 2}'.encode()
    async with api_harness(any_redis_url) as ours:
        answer = await ours.post(b' { "payload" : ' + payload + b" } ")
        assert (answer.status, answer.body["duplicate"]) == (202, False)
        assert await ours.inbox() == {answer.body["message_id"]: payload}


async def test_a_payload_may_be_any_json_value(redis_url: str) -> None:
    values = ["null", "0", '"text"', "[]", "true", "1e400"]
    async with api_harness(redis_url) as ours:
        for value in values:
            assert (await ours.post(f'{{"payload":{value}}}'.encode())).status == 202
        assert [each.decode() for each in (await ours.inbox()).values()] == values


async def test_a_list_of_messages_gets_replies_in_its_order(any_redis_url: str) -> None:
    async with api_harness(any_redis_url) as ours:
        batch = [{"payload": n} for n in range(1_200)]
        answer = await ours.post(batch)
        assert answer.status == 202
        inbox = await ours.inbox()
        assert [inbox[each["message_id"]] for each in answer.body] == [
            b"%d" % n for n in range(1_200)
        ]
        assert (await ours.post([])).body == []


async def test_a_message_may_name_its_queue(any_redis_url: str) -> None:
    async with api_harness(any_redis_url) as ours:
        assert (await ours.post([{"payload": 1, "queue": "emails"}, {"payload": 2}])).status == 202
        by_header = await ours.post({"payload": 3, "queue": "emails"}, {"Idempotency-Key": "k"})
        assert by_header.status == 202
        queues = []
        for partition in range(ours.store.partitions):
            name = ours.runtime.keyspace.name(keys.MESSAGES_INBOX, partition)
            for _, fields in await ours.runtime.redis.call("XRANGE", name, "-", "+", key=name):
                queues.append(dict(zip(fields[::2], fields[1::2], strict=True)).get(b"queue"))
        assert Counter(queues) == {b"emails": 2, None: 1}
        refused = await ours.post([{"payload": 4}, {"payload": 5, "queue": "two words"}])
        assert (refused.status, refused.body["code"]) == (400, "input_invalid")
        assert (await ours.ask("GET", "/v1/dispatch")).body["queues"] == []


async def test_an_idempotency_key_adds_one_message_however_often_it_is_sent(
    any_redis_url: str,
) -> None:
    async with api_harness(any_redis_url) as ours:
        first = (await ours.post({"payload": 1, "idempotency_key": "k"})).body
        assert not first["duplicate"]
        again = {"message_id": first["message_id"], "duplicate": True}
        by_header = await ours.post({"payload": 2}, {"Idempotency-Key": "k"})
        assert (by_header.status, by_header.body) == (202, again)
        both = await ours.post({"payload": 3, "idempotency_key": "k"}, {"Idempotency-Key": "k"})
        assert both.body == again
        in_list = [{"payload": n, "idempotency_key": key} for n, key in enumerate("kll")]
        one, two, three = (await ours.post(in_list)).body
        assert one == again
        assert not two["duplicate"]
        assert three == {"message_id": two["message_id"], "duplicate": True}
        assert sorted((await ours.inbox()).values()) == [b"1", b"1"]


REFUSED: list[tuple[bytes, dict[str, str], int, str]] = [
    (b"", {}, 400, "input_invalid"),
    (b"{", {}, 400, "input_invalid"),
    (b"7", {}, 400, "input_invalid"),
    (b"{}", {}, 400, "input_invalid"),
    (b'{"payload":nul}', {}, 400, "input_invalid"),
    (b'{"payload":"\xff"}', {}, 400, "input_invalid"),
    (b'{"payload":1,"key":"k"}', {}, 400, "input_invalid"),
    (b'{"payload":1,"idempotency_key":""}', {}, 400, "input_invalid"),
    (b'{"payload":1,"idempotency_key":7}', {}, 400, "input_invalid"),
    (b'{"payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}", {}, 400, "input_invalid"),
    (b'[{"payload":1},{"payload":}]', {}, 400, "input_invalid"),
    (b'{"payload":1}', {"Idempotency-Key": ""}, 400, "input_invalid"),
    (b'[{"payload":1}]', {"Idempotency-Key": "k"}, 400, "input_invalid"),
    (b'{"payload":1,"idempotency_key":"a"}', {"Idempotency-Key": "b"}, 400, "input_invalid"),
    (b'{"payload":1,"idempotency_key":"%b"}' % (b"k" * 513), {}, 413, "limit_exceeded"),
    (b'[{"payload":1},{"payload":"%b"}]' % (b"x" * 2_000), {}, 413, "limit_exceeded"),
    (b"[%b]" % b",".join([b'{"payload":1}'] * 11), {}, 413, "limit_exceeded"),
    (b'{"payload":1' + b" " * 300_000 + b"}", {}, 413, "limit_exceeded"),
]


async def test_an_invalid_request_is_refused_and_adds_nothing(redis_url: str) -> None:
    limits = {"frame_bytes_max": 1_000, "intake_messages_max": 10, "http_body_bytes_max": 250_000}
    async with api_harness(redis_url, limits=limits) as ours:
        for body, headers, status, code in REFUSED:
            answer = await ours.post(body, headers)
            assert (answer.status, answer.type) == (status, "application/problem+json"), body[:80]
            assert answer.body["code"] == code, body[:80]
        assert await ours.inbox() == {}


async def test_a_full_intake_takes_a_whole_list_or_nothing(redis_url: str) -> None:
    async with api_harness(redis_url, limits={"batch_waiting_items_max": 5}) as ours:
        answer = await ours.post([{"payload": n} for n in range(6)])
        assert (answer.status, answer.body["code"]) == (503, "overloaded")
        assert await ours.inbox() == {}
        assert (await ours.post([{"payload": n} for n in range(5)])).status == 202


async def test_a_posted_message_reaches_a_worker(redis_url: str) -> None:
    async with dispatch_services(redis_url, ack_timeout_ms=30_000) as ours:
        await ours.add_dispatcher()
        await ours.add_worker()
        api = Api(ours.runtime, [http_api(ours.runtime, Application())])
        await api.start()
        url = f"http://127.0.0.1:{api.ports['http']}"
        async with aiohttp.ClientSession() as http:
            async with http.post(url + MESSAGES, json=[{"payload": {"n": 1}}]) as response:
                ((posted),) = await response.json()
            (result,) = await ours.wait_for_results(1)
            assert (result["message_id"], result["n"]) == (posted["message_id"], "1")
            async with http.get(f"{url}/v1/dispatch") as response:
                shown = await response.json()
        assert shown["consumers"] == [result["consumer_id"]]
        (partition,) = shown["partitions"]
        assert shown["dispatchers"] == [partition["leader"]]
        assert (partition["term"], partition["processed"], partition["pending"]) == (1, 1, 0)
        await api.stop(30)


# Status and gauges


async def test_the_status_lists_each_partition_even_without_dispatchers(
    any_redis_url: str,
) -> None:
    async with api_harness(any_redis_url) as ours:
        await ours.post([{"payload": n} for n in range(20)])
        answer = await ours.ask("GET", "/v1/dispatch")
        assert (answer.status, answer.body["consumers"], answer.body["dispatchers"]) == (
            200,
            [],
            [],
        )
        partitions = answer.body["partitions"]
        assert [each["partition"] for each in partitions] == list(range(ours.store.partitions))
        assert sum(each["inbox"] for each in partitions) == 20
        assert {each["leader"] for each in partitions} == {None}


async def test_the_gauges_show_waiting_and_dead_messages(redis_url: str) -> None:
    async with api_harness(redis_url) as ours:
        await ours.post([{"payload": n} for n in range(3)])
        await ours.die(b"1", "no")

        watch = http_api(ours.runtime, Application()).service
        assert isinstance(watch, DispatchGauges)
        assert await watch.run_once() == 0
        page = (await ours.ask("GET", "/metrics")).body.decode().splitlines()
        assert {
            'angarium_dispatch_inbox_messages{partition="0"} 3.0',
            'angarium_dispatch_dead_messages{partition="0"} 1.0',
            'angarium_dispatch_pending_messages{partition="0"} 0.0',
            'angarium_dispatch_oldest_ms{partition="0"} 0.0',
            'angarium_dispatch_led{partition="0"} 0.0',
        } <= set(page)


async def test_a_failed_pass_removes_the_gauges(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prometheus_client import REGISTRY

    def pending() -> float | None:
        name = "angarium_dispatch_pending_messages"
        return REGISTRY.get_sample_value(name, {"partition": "0"})

    async def fail(partition: int) -> None:
        raise RedisUnavailable("away")

    async with sample_runtime(redis_url) as runtime:
        store = runtime.store(DispatchStore)
        watch = DispatchGauges(runtime)
        assert await watch.run_once() == 0
        assert pending() == 0
        monkeypatch.setattr(store, "status", fail)
        with pytest.raises(RedisUnavailable):
            await watch.run_once()
        assert pending() is None


# Dead letters


async def test_dead_letters_are_listed_page_by_page_over_all_partitions(any_redis_url: str) -> None:
    async with api_harness(any_redis_url) as ours:
        last = ours.store.partitions - 1
        died = [await ours.die(b"%d" % n, f"reason {n}") for n in range(3)]
        died += [await ours.die(b"%d" % n, f"reason {n}", last) for n in range(3, 5)]
        found: list[dict[str, Any]] = []
        path = f"{DEAD}?limit=2"
        while True:
            page = (await ours.ask("GET", path)).body
            found += page["letters"]
            if page["next"] is None:
                break
            assert len(page["letters"]) == 2
            path = f"{DEAD}?limit=2&after={page['next']}"
        assert [each["id"] for each in found] == died
        assert [each["reasons"] for each in found] == [[f"reason {n}"] for n in range(5)]
        assert [each["payload"] for each in found] == ["0", "1", "2", "3", "4"]
        assert (await ours.ask("GET", DEAD)).body == {"letters": found, "next": None}


async def test_an_invalid_page_request_is_refused(redis_url: str) -> None:
    queries = [
        "limit=0", f"limit={PAGE_MAX + 1}", "limit=x", "limit=", "limit=-1", "limit=0000000005009",
        "after=", "after=x", "after=9:1-1", "after=0:1", "after=0:99999999999999999999-0",
        "after=0:1-1%0a",
    ]  # fmt: skip
    async with api_harness(redis_url) as ours:
        for query in queries:
            answer = await ours.ask("GET", f"{DEAD}?{query}")
            assert (answer.status, answer.body["code"]) == (400, "input_invalid"), query


async def test_a_list_cuts_long_payloads_and_a_single_dead_letter_shows_all(redis_url: str) -> None:
    async with api_harness(redis_url) as ours:
        long = '"' + "é" * SHOWN_BYTES_MAX + '"'
        message_id = await ours.die(long.encode(), "too long for a list")
        (listed,) = (await ours.ask("GET", DEAD)).body["letters"]
        assert listed["payload_cut"]
        assert listed["payload_bytes"] == len(long.encode())
        assert long.startswith(listed["payload"])
        assert len(listed["payload"].encode()) in (SHOWN_BYTES_MAX - 1, SHOWN_BYTES_MAX)
        whole = (await ours.ask("GET", f"{DEAD}/{message_id.upper()}")).body
        assert (whole["payload"], whole["payload_cut"]) == (long, False)


async def test_a_payload_that_is_not_utf8_is_shown_in_base64(redis_url: str) -> None:
    async with api_harness(redis_url) as ours:
        message_id = await ours.die(b"\xff\x00{", "no JSON")
        letter = (await ours.ask("GET", f"{DEAD}/{message_id}")).body
        assert letter["payload_encoding"] == "base64"
        assert base64.b64decode(letter["payload"]) == b"\xff\x00{"


async def test_a_dead_letter_is_retried_once(any_redis_url: str) -> None:
    async with api_harness(any_redis_url) as ours:
        partition = ours.store.partitions - 1
        message_id = await ours.die(b"1", "no", partition)
        path = f"{DEAD}/{message_id}/retry"
        answer = await ours.ask("POST", path)
        assert (answer.status, answer.body) == (
            200,
            {"id": message_id, "status": "retried"},
        )
        status = await ours.store.status(partition)
        assert (status.pending, status.dead) == (1, 0)
        again = await ours.ask("POST", path)
        assert (again.status, again.body["code"]) == (404, "dead_letter_unknown")


async def test_dead_letters_of_one_reason_are_listed_and_retried_together(
    any_redis_url: str,
) -> None:
    async with api_harness(any_redis_url) as ours:
        partitions = range(ours.store.partitions)
        alike = {await ours.die(b"1", "w1: TimeoutError: bank", each) for each in partitions}
        other = await ours.die(b"2", "w1: ValueError: no such customer")
        listed = (await ours.ask("GET", f"{DEAD}?reason=TimeoutError")).body["letters"]
        assert {each["id"] for each in listed} == alike
        refused = await ours.ask("POST", f"{DEAD}/retry", body=b'{"reason": "TimeoutError"}')
        assert (refused.status, refused.body["code"]) == (400, "input_invalid")
        answer = await ours.ask("POST", f"{DEAD}/retry?reason=TimeoutError:%20bank")
        assert (answer.status, answer.body) == (200, {"retried": len(alike), "unusable": 0})
        (left,) = (await ours.ask("GET", DEAD)).body["letters"]
        assert left["id"] == other
        answer = await ours.ask("DELETE", f"{DEAD}?reason=TimeoutError")
        assert (answer.status, answer.body) == (200, {"dropped": 0})
        answer = await ours.ask("POST", f"{DEAD}/retry", body=b"{}")
        assert answer.body["retried"] == 1


async def test_dead_letters_of_one_reason_are_dropped_together(any_redis_url: str) -> None:
    async with api_harness(any_redis_url) as ours:
        partitions = range(ours.store.partitions)
        for each in partitions:
            await ours.die(b"1", "w1: TimeoutError: bank", each)
        other = await ours.die(b"2", "w1: ValueError: no such customer")
        for method, path in (("DELETE", f"{DEAD}?reason="), ("POST", f"{DEAD}/retry?reason=")):
            assert (await ours.ask(method, path)).status == 400
        answer = await ours.ask("DELETE", f"{DEAD}?reason=TimeoutError")
        assert (answer.status, answer.body) == (200, {"dropped": len(partitions)})
        (left,) = (await ours.ask("GET", DEAD)).body["letters"]
        assert left["id"] == other
        assert (await ours.ask("DELETE", DEAD)).body == {"dropped": 1}


async def test_a_reply_with_large_dead_letters_has_limited_size(redis_url: str) -> None:
    limits = {"batch_bytes_max": 5_000}
    async with api_harness(redis_url, limits=limits) as ours:
        ids = [await ours.die(b'"%s"' % (b"x" * 1_500), f"no {n}") for n in range(30)]
        assert len(await ours.store.dead_letters(0, 100)) < 10
        listed = (await ours.ask("GET", DEAD)).body["letters"]
        assert [each["id"] for each in listed] == ids


async def test_a_dead_letter_is_dropped_once(any_redis_url: str) -> None:
    async with api_harness(any_redis_url) as ours:
        message_id = await ours.die(b"1", "no")
        assert (await ours.ask("DELETE", f"{DEAD}/{message_id}")).status == 204
        status = await ours.store.status(0)
        assert (status.pending, status.dead) == (0, 0)
        assert (await ours.ask("DELETE", f"{DEAD}/{message_id}")).status == 404


async def test_a_dead_letter_without_its_payload_can_only_be_dropped(redis_url: str) -> None:
    async with api_harness(redis_url) as ours:
        name = ours.runtime.keyspace.name(keys.MESSAGES_DEAD)
        fields = ("message_id", UNKNOWN, "deliveries", 1, "reasons", "the payload is gone")
        await ours.runtime.redis.call("XADD", name, "*", *fields, key=name)
        letter = (await ours.ask("GET", f"{DEAD}/{UNKNOWN}")).body
        assert (letter["payload"], letter["payload_bytes"]) == (None, 0)
        answer = await ours.ask("POST", f"{DEAD}/{UNKNOWN}/retry")
        assert (answer.status, answer.body["code"]) == (409, "dead_letter_unusable")
        assert (await ours.ask("DELETE", f"{DEAD}/{UNKNOWN}")).status == 204


async def test_a_message_that_is_not_dead_is_not_found(redis_url: str) -> None:
    async with api_harness(redis_url) as ours:
        for message_id in (UNKNOWN, "x", "%ff", "ä" * 40):
            for method, path in (
                ("GET", f"{DEAD}/{message_id}"),
                ("POST", f"{DEAD}/{message_id}/retry"),
                ("DELETE", f"{DEAD}/{message_id}"),
            ):
                answer = await ours.ask(method, path)
                assert (answer.status, answer.body["code"]) == (404, "dead_letter_unknown")


# OpenAPI


def test_the_api_conforms_to_its_openapi_page(redis_url: str) -> None:
    """Valid and invalid requests that are generated from the OpenAPI page, against a process."""
    env = {"ANGARIUM_REDIS_URL": redis_url, "ANGARIUM_PREFIX": "dispatch-page:"}
    with RoleProcess(["serve", "api"], {**env, "ANGARIUM_HTTP__PORT": "0"}) as role:
        url = f"http://127.0.0.1:{role.ports['http']}"
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json").include(tag="dispatch")
        names = []
        for found in schema.get_all_operations():
            operation: Any = found.ok()  # type: ignore[union-attr]
            names.append(operation.label)

            @settings(max_examples=10, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy())
            def hold(case: Any) -> None:
                # OpenAPI can't express that the header is not allowed with a list.
                case.call_and_validate(excluded_checks=[positive_data_acceptance])

            hold()
        assert len(names) == 11
