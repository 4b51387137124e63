"""Process reports: listed by the API, and for Prometheus as the manifests declare them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from angarium.redis.address import Address
from angarium.redis.connection import Credentials, open_connection
from angarium.runtime.application import Application
from angarium.runtime.errors import AngariumError, RedisUnavailable
from angarium.runtime.process_report import TTL_MS, ProcessReporter
from angarium.runtime.runtime import Runtime
from angarium.server import http, processes
from angarium.server.http import HTTP_APIS, Api
from angarium.server.process_metrics import ProcessMetrics
from tests.kit.clock import FakeClock
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime
from tests.kit.server import ServerProcess
from tests.redis.scripted import scripted
from tests.runtime.test_http_api import check_page

PATIENCE_S = 30.0
# Between two readings, so that a test need not wait for seconds.
SHORT_S = 0.02
UNMATCHED = "angarium_redis_unmatched_replies_total"
COUNTERS = (UNMATCHED, "angarium_relay_queued_total")

Series = dict[tuple[str, str], float]


def shown(text: str) -> Series:
    """(name, actor) -> value of every series of a process; one that is twice is an error."""
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "actor" in sample.labels:
                assert family.type == ("counter" if sample.name in COUNTERS else "gauge")
                assert set(sample.labels) == {"host", "pid", "actor"}
                key = (sample.name, sample.labels["actor"])
                assert key not in found
                found[key] = sample.value
    return found


def page(metrics: ProcessMetrics) -> Series:
    registry = CollectorRegistry()
    registry.register(metrics)
    return shown(generate_latest(registry).decode())


def scraped(metrics: ProcessMetrics) -> Series:
    """The metrics of roles, without those of every process."""
    return {key: value for key, value in page(metrics).items() if key[0] != UNMATCHED}


async def get(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            writer.write(
                f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()
            )
            answer = (await reader.read()).decode()
    finally:
        writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200"), answer
    return body


@asynccontextmanager
async def beside(runtime: Runtime, actor: str) -> AsyncIterator[Runtime]:
    """Another process on the same keys."""
    settings = runtime.settings
    async with sample_runtime(
        settings.redis_url, clock=runtime.clock, actor=actor, prefix=settings.prefix
    ) as other:
        yield other


# The collector


async def test_each_number_is_a_gauge_with_role_and_process(any_redis_url: str) -> None:
    async with (
        sample_runtime(any_redis_url, clock=FakeClock(), actor="one") as one,
        beside(one, "two") as two,
    ):
        await ProcessReporter(one, "relay").report({"queued": 3, "mode": "calm"})
        await ProcessReporter(two, "relay").report({"queued": 4.5})
        await ProcessReporter(two, "node").report({"running": 1})
        metrics = ProcessMetrics(one)
        assert scraped(metrics) == {}, "nothing before the first reading"
        assert await metrics.run_once() == 3
        assert scraped(metrics) == {
            ("angarium_relay_queued_total", "one"): 3,
            ("angarium_relay_queued_total", "two"): 4.5,
            ("angarium_node_running", "two"): 1,
        }


async def test_unmatched_replies_are_counted_for_each_process(redis_url: str) -> None:
    async with (
        sample_runtime(redis_url, clock=FakeClock(), actor="one") as one,
        beside(one, "two") as two,
        scripted(lambda number, words: b"?" if number == 0 else None) as server,
    ):
        # A connection of one's own client that is answered with what is no reply.
        address = Address("127.0.0.1", server.port)
        with pytest.raises(RedisUnavailable):
            await open_connection(address, Credentials(), None, two.redis._use.count_unmatched)
        for runtime, role in ((one, "relay"), (two, "relay"), (two, "node")):
            await ProcessReporter(runtime, role).report({})
        metrics = ProcessMetrics(one)
        await metrics.run_once()
        assert page(metrics) == {(UNMATCHED, "one"): 0, (UNMATCHED, "two"): 1}


async def test_a_dead_process_is_left_out(redis_url: str) -> None:
    clock = FakeClock()
    async with (
        sample_runtime(redis_url, clock=clock, actor="one") as one,
        beside(one, "two") as two,
    ):
        metrics = ProcessMetrics(one)
        for runtime in (one, two):
            await ProcessReporter(runtime, "relay").report({"queued": 1})
        await metrics.run_once()
        assert len(scraped(metrics)) == 2
        await ProcessReporter(two, "relay").withdraw()
        await metrics.run_once()
        assert scraped(metrics) == {("angarium_relay_queued_total", "one"): 1}
        await clock.advance(TTL_MS / 1000 + 0.001)
        assert await metrics.run_once() == 0
        assert scraped(metrics) == {}


async def test_an_outdated_reading_is_left_out(redis_url: str) -> None:
    clock = FakeClock()
    async with sample_runtime(redis_url, clock=clock) as runtime:
        metrics = ProcessMetrics(runtime)
        await ProcessReporter(runtime, "relay").report({"queued": 1})
        await metrics.run_once()
        await clock.advance(TTL_MS / 1000)
        assert len(scraped(metrics)) == 1
        await clock.advance(0.001)
        assert scraped(metrics) == {}


async def test_any_name_makes_a_valid_page_for_prometheus(redis_url: str) -> None:
    async with sample_runtime(redis_url, actor='o"n\\e\n') as runtime:
        odd = {"p99.latency ms": 1, "p99_latency-ms": 2, "ü": 3, "": 4, "accepted_total": 5}
        await ProcessReporter(runtime, "reply-sender").report(odd)
        metrics = ProcessMetrics(runtime)
        await metrics.run_once()
        found = scraped(metrics)
        assert {name for name, _ in found} == {
            "angarium_reply_sender_p99_latency_ms",
            "angarium_reply_sender__",
            "angarium_reply_sender_",
            "angarium_reply_sender_accepted_total",
        }
        assert {actor for _, actor in found} == {'o"n\\e\n'}


# The API


@asynccontextmanager
async def serving(runtime: Runtime) -> AsyncIterator[int]:
    api = Api(runtime, [processes.http_api(runtime, Application())])
    await api.start()
    try:
        yield api.ports["http"]
    finally:
        await api.stop(PATIENCE_S)


async def listed(port: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(await get(port, "/v1/processes"))["processes"]
    return found


async def test_the_api_lists_every_process_with_its_metrics(any_redis_url: str) -> None:
    async with (
        sample_runtime(any_redis_url, actor="one", http={"port": 0}) as one,
        beside(one, "two") as two,
        serving(one) as port,
    ):
        assert await listed(port) == []
        await ProcessReporter(two, "relay").report({"queued": 3, "mode": "calm"})
        (process,) = await listed(port)
        assert (process["role"], process["actor"]) == ("relay", "two")
        assert process["figures"] == {"queued": 3.0, "mode": "calm"}
        assert process["host"]
        assert process["pid"] > 0
        assert process["at_ms"] > 0
        await ProcessReporter(two, "relay").withdraw()
        assert await listed(port) == []


async def test_the_api_exports_the_metrics_of_other_processes_beside_its_own(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "INTERVAL_S", SHORT_S)
    async with (
        sample_runtime(redis_url, actor="one", http={"port": 0}) as one,
        beside(one, "two") as two,
    ):
        await ProcessReporter(two, "relay").report({"queued": 3})
        async with serving(one) as port:
            key = ("angarium_relay_queued_total", "two")

            async def gauge() -> float | None:
                return shown(await get(port, "/metrics")).get(key)

            assert await eventually(gauge, PATIENCE_S) == 3
            await ProcessReporter(two, "relay").report({"queued": 7})

            async def follows() -> bool:
                return await gauge() == 7

            await eventually(follows, PATIENCE_S)
            assert "angarium_supervised_failures" in await get(port, "/metrics")
            await ProcessReporter(two, "relay").withdraw()

            async def gone() -> bool:
                return await gauge() is None

            await eventually(gone, PATIENCE_S)


async def test_the_operation_is_in_a_valid_openapi_document(redis_url: str) -> None:
    async with sample_runtime(redis_url, http={"port": 0}) as runtime, serving(runtime) as port:
        assert processes.__name__ in HTTP_APIS
        page = json.loads(await get(port, "/openapi.json"))
        check_page(page)
        operation = page["paths"]["/v1/processes"]["get"]
        assert operation["operationId"] == "list_processes"
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/Processes"}
        figures = page["components"]["schemas"]["ProcessReport"]["properties"]["figures"]
        kinds = [each["type"] for each in figures["additionalProperties"]["anyOf"]]
        assert sorted(kinds) == ["number", "string"]


async def test_the_metrics_come_back_after_redis_was_unavailable(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reading_failed() -> bool:
        logged: list[Any] = [record.msg for record in caplog.records]
        return any(isinstance(each, dict) and each.get("task") == "processes" for each in logged)

    monkeypatch.setattr(http, "INTERVAL_S", SHORT_S)
    quick = {"unavailable_timeout_ms": 200}
    with ServerProcess() as server:
        async with (
            sample_runtime(server.url, http={"port": 0}, redis=quick) as runtime,
            serving(runtime) as port,
        ):
            reporter = ProcessReporter(runtime, "relay")
            await reporter.report({"queued": 1})

            async def gauges() -> Series:
                return shown(await get(port, "/metrics"))

            async def back() -> bool:
                await reporter.report({"queued": 2})
                return 2 in (await gauges()).values()

            await eventually(gauges, PATIENCE_S)
            server.kill()
            await eventually(reading_failed, PATIENCE_S)
            assert len(await gauges()) <= 2, "an answer, with Redis gone"
            server.restart()
            await eventually(back, PATIENCE_S, ignoring=(AngariumError,))
