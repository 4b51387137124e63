"""A collector of OpenTelemetry: OTLP over HTTP, as an operator would run one.

Takes what the exporters send, decodes the protobuf, and keeps the spans as plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    service: str
    instance: str
    start_ns: int
    end_ns: int
    failed: str
    values: Mapping[str, Any]


class Collector:
    """`async with Collector() as collector:`, then `collector.env` for the processes."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def env(self) -> dict[str, str]:
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._port}",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }

    def trace(self, trace_id: str) -> list[Span]:
        return [each for each in self.spans if each.trace_id == trace_id]

    async def _take(self, request: web.Request) -> web.Response:
        found = ExportTraceServiceRequest.FromString(await request.read())
        for part in found.resource_spans:
            whose = {each.key: each.value.string_value for each in part.resource.attributes}
            for scope in part.scope_spans:
                self.spans += [_span(each, whose) for each in scope.spans]
        return web.Response(content_type="application/x-protobuf")


def _span(span: Any, whose: Mapping[str, str]) -> Span:
    return Span(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        service=whose.get("service.name", ""),
        instance=whose.get("service.instance.id", ""),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        failed=span.status.message if span.status.code == 2 else "",
        values={
            each.key: each.value.string_value or each.value.int_value for each in span.attributes
        },
    )
