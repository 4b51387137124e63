"""Spans: none without a collector, and then nothing of OpenTelemetry is even imported."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from angarium.dispatch.message_ids import new_ids
from angarium.runtime.runtime import Runtime
from angarium.runtime.trace import CURRENT_WORK, CurrentWork, Trace, trace_in_payload, trace_of_id
from angarium.runtime.tracing import ENDPOINTS, Tracing, open_tracing
from angarium.settings import Settings
from tests.kit.collector import Collector
from tests.kit.eventually import eventually

CARRIED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MESSAGE = b"a1111111-1111-4111-8111-111111110000"
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*ENDPOINTS, "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_TRACES_SAMPLER"):
        monkeypatch.delenv(name, raising=False)


def set_environment(monkeypatch: pytest.MonkeyPatch, collector: Collector, **more: str) -> None:
    for name, value in {**collector.env, **more}.items():
        monkeypatch.setenv(name, value)


async def test_without_a_collector_there_is_no_tracing(redis_url: str) -> None:
    async with Runtime.open(Settings(redis_url=redis_url)) as runtime:
        assert runtime.tracing is None


def test_without_a_collector_opentelemetry_is_not_imported() -> None:
    code = (
        "import sys, angarium.runtime.tracing as tracing, angarium.server.app\n"
        "assert tracing.open_tracing('x') is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PATH": "/usr/bin:/bin"})


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")]
)
def test_the_standard_switches_turn_it_off(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(ENDPOINTS[1], "http://127.0.0.1:9")
    assert open_tracing("x") is not None
    monkeypatch.setenv(name, value)
    assert open_tracing("x") is None


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINTS[1], "http://127.0.0.1:9")
    monkeypatch.setattr("angarium.runtime.tracing.PACKAGES", ("no-such-sdk", "no-such-exporter"))
    assert open_tracing("x") is None
    assert "angarium[otel]" in caplog.text


async def test_spans_arrive_with_names_parents_values_and_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Collector() as collector:
        set_environment(monkeypatch, collector, OTEL_SERVICE_NAME="ours")
        tracing = open_tracing("host-1-abc")
        assert tracing is not None
        with tracing.span(
            "outer", trace_in_payload(f'{{"traceparent":"{CARRIED}"}}'.encode())
        ) as outer:
            tracing.record("inner", outer, time.time_ns(), {"count": 3}, problem="too late")
        with pytest.raises(ValueError, match="no luck"), tracing.span("broken", outer):
            raise ValueError("no luck")
        await tracing.close()
        await eventually(lambda: len(collector.spans) == 3, PATIENCE_S)
    found = {each.name: each for each in collector.spans}
    assert {each.trace_id for each in found.values()} == {CARRIED.split("-")[1]}
    assert found["outer"].parent_id == CARRIED.split("-")[2]
    assert found["inner"].parent_id == found["outer"].span_id == outer.span_id
    assert (found["inner"].values["count"], found["inner"].failed) == (3, "too late")
    assert found["broken"].failed == "ValueError: no luck"
    assert (found["outer"].service, found["outer"].instance) == ("ours", "host-1-abc")


async def test_every_process_knows_a_messages_first_span_by_its_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Collector() as collector:
        set_environment(monkeypatch, collector)
        dispatcher, worker = Tracing("dispatcher"), Tracing("worker")
        plain, carrying = b"{}", f'{{"traceparent":"{CARRIED}"}}'.encode()
        for payload, decoded in ((plain, {}), (carrying, {"traceparent": CARRIED})):
            dispatcher.messages("accept", [(MESSAGE, payload)], time.time_ns(), first=True)
            in_hand = CurrentWork(MESSAGE, decoded, is_message=True)
            worker.record("work", in_hand.parent, time.time_ns())
        await dispatcher.close()
        await worker.close()
        await eventually(lambda: len(collector.spans) == 4, PATIENCE_S)
    for trace_id, outside in ((MESSAGE.decode().replace("-", ""), ""), CARRIED.split("-")[1:3]):
        found = {each.name: each for each in collector.trace(trace_id)}
        assert found["accept"].parent_id == outside
        assert found["work"].parent_id == found["accept"].span_id == "8111111111110000"


async def test_a_sampler_decides_once_for_a_trace_wherever_its_spans_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Collector() as collector:
        ratio = {
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.5",
        }
        set_environment(monkeypatch, collector, **ratio)
        dispatcher, worker = Tracing("dispatcher"), Tracing("worker")
        ids = new_ids(64)
        for each in ids:
            dispatcher.messages("accept", [(each, b"{}")], time.time_ns(), first=True)
            worker.record("work", CurrentWork(each, {}, is_message=True).parent, time.time_ns())
        _, trace_id, span_id, _ = CARRIED.split("-")
        unsampled = Trace(trace_id, span_id, False)
        worker.record("work", unsampled, time.time_ns())
        await dispatcher.close()
        await worker.close()
    traces = {each.trace_id for each in collector.spans}
    assert 0 < len(traces) < len(ids)
    assert unsampled.trace_id not in traces
    for found in traces:
        assert sorted(span.name for span in collector.trace(found)) == ["accept", "work"]


async def test_a_users_own_spans_are_children_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry import trace as api

    async with Collector() as collector:
        set_environment(monkeypatch, collector)
        tracing = Tracing("worker")
        with tracing.span("work", None, current=True) as own:
            assert f"{api.get_current_span().get_span_context().span_id:016x}" == own.span_id
        assert not api.get_current_span().get_span_context().is_valid
        await tracing.close()


async def test_a_collector_that_never_answers_delays_nothing(
    monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> None:
    monkeypatch.setenv(ENDPOINTS[1], "http://127.0.0.1:9")
    began_s = time.monotonic()
    async with Runtime.open(Settings(redis_url=redis_url)) as runtime:
        assert runtime.tracing is not None
        for _ in range(100):
            runtime.tracing.record("x", None, time.time_ns())
    assert time.monotonic() - began_s < PATIENCE_S
    # The SDK's threads go on trying for ten seconds, with random pauses: not into the next test.
    for thread in threading.enumerate():
        if thread.name == "angarium-traces" or thread.name.startswith("Otel"):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@pytest.mark.parametrize("payload", [b"", b"traceparent", b'{"traceparent":', b'{"traceparent":1}'])
def test_a_payload_that_carries_no_trace_is_no_reason_to_fail(payload: bytes) -> None:
    assert trace_in_payload(payload) is None


@pytest.mark.parametrize("id", ["", "anna", "0" * 32, "rffffffffffffffffffffffffffffffffffff"])
def test_an_id_without_128_bits_is_no_trace(id: str) -> None:
    assert trace_of_id(id) is None


def test_a_log_line_contains_the_trace_id(capsys: pytest.CaptureFixture[Any]) -> None:
    import json
    import logging

    from angarium.runtime import log

    handlers, level = logging.root.handlers[:], logging.root.level
    log.configure()
    token = CURRENT_WORK.set(CurrentWork(MESSAGE, {"traceparent": CARRIED}, is_message=True))
    try:
        logging.getLogger("theirs").warning("hello")
    finally:
        CURRENT_WORK.reset(token)
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
    assert json.loads(capsys.readouterr().err)["trace_id"] == CARRIED.split("-")[1]
