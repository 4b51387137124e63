"""Spans for OpenTelemetry: one trace for each message, through all modules and processes.

`open_tracing` returns None unless the standard OTEL_EXPORTER_OTLP_ENDPOINT (or …_TRACES_ENDPOINT)
names a collector and the extra `otel` is installed. Callers check for None before they make a span,
so a process without a collector pays one comparison. The SDK is imported with the first span. A
thread of the SDK sends spans, OTLP over HTTP; while the collector is unreachable, only spans are
lost. OpenTelemetry's own variables set the sampler, headers and batch sizes.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Literal

from angarium.runtime import log
from angarium.runtime.trace import Trace, first_span, trace_in_payload, trace_of_id

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PACKAGES = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
# Spans that are not sent by then are dropped: a stopping process does not wait for a collector.
FLUSH_S_MAX = 1.0
Kind = Literal["internal", "server", "client", "producer", "consumer"]
Values = Mapping[str, str | int]
NO_VALUES: Values = {}


def open_tracing(actor: str) -> Tracing | None:
    """The tracing of this process, or None if its environment does not ask for it."""
    given = os.environ
    if not any(given.get(name) for name in ENDPOINTS):
        return None
    if given.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if given.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    if otel_version() is None:
        log.logger("angarium.tracing").warning("no_traces", fix="pip install 'angarium[otel]'")
        return None
    return Tracing(actor)


def otel_version() -> str | None:
    """The version of the SDK, if the SDK and the exporter are installed."""
    try:
        version(PACKAGES[1])
        return version(PACKAGES[0])
    except PackageNotFoundError:
        return None


class Tracing:
    """Makes spans. Callers pass a parent as `Trace` and get the new span as `Trace`."""

    def __init__(self, actor: str) -> None:
        self._actor = actor
        self._started: _Sdk | None = None
        self._starting = threading.Lock()

    @property
    def _sdk(self) -> _Sdk:
        if self._started is None:
            with self._starting:  # users' functions run in threads
                self._started = self._started or _Sdk(self._actor)
        return self._started

    @contextmanager
    def span(
        self,
        name: str,
        parent: Trace | None,
        values: Values = NO_VALUES,
        *,
        kind: Kind = "internal",
        current: bool = False,
    ) -> Iterator[Trace]:
        """A span for the block. An exception that leaves the block marks the span as failed.

        With `current`, the span is also OpenTelemetry's current span, for users' own spans.
        """
        span = self._sdk.begin(name, parent, None, values, kind, time.time_ns())
        try:
            with self._sdk.current(span) if current else _no_context():
                yield _trace_of(span)
        except Exception as error:
            self._sdk.fail(span, error)
            raise
        finally:
            span.end()

    def record(
        self,
        name: str,
        parent: Trace | None,
        began_ns: int,
        values: Values = NO_VALUES,
        *,
        kind: Kind = "internal",
        own: Trace | None = None,
        problem: str = "",
    ) -> Trace:
        """A span that has ended. `own` sets its trace and span ids."""
        span = self._sdk.begin(name, parent, own, values, kind, began_ns)
        if problem:
            self._sdk.fail(span, problem)
        span.end()
        return _trace_of(span)

    def messages(
        self,
        name: str,
        messages: Sequence[tuple[bytes, bytes]],
        began_ns: int,
        values: Values = NO_VALUES,
        *,
        first: bool = False,
    ) -> None:
        """One span for each (id, payload). With `first` they are the messages' first spans: their
        ids follow from the message ids, so later spans know their parent."""
        for message_id, payload in messages:
            id = message_id.decode()
            carried = trace_in_payload(payload)
            own = first_span(id, carried)
            if own is None:
                continue
            named = {"angarium.message_id": id, **values}
            if first:
                self.record(name, carried, began_ns, named, own=own, kind="consumer")
            else:
                self.record(name, own, began_ns, named, kind="producer")

    def started(self, id: str, what: str, began_ns: int, values: Values = NO_VALUES) -> None:
        """The first span of something that begins its own trace; its ids follow from `id`."""
        own = trace_of_id(id)
        if own is not None:
            self.record(what, None, began_ns, values, own=own, kind="producer")

    def when_queued(
        self, id: str, what: str, future: asyncio.Future[Any], carried: Trace | None = None
    ) -> None:
        """A first span that ends when the future is done."""
        began_ns, own = time.time_ns(), first_span(id, carried)
        if own is None:
            return

        def done(future: asyncio.Future[Any]) -> None:
            error = None if future.cancelled() else future.exception()
            problem = "cancelled" if future.cancelled() else "" if error is None else repr(error)
            values = {"angarium.id": id}
            self.record(what, carried, began_ns, values, own=own, kind="producer", problem=problem)

        future.add_done_callback(done)

    def follow(
        self, ids: Iterable[str], what: str, values: Values = NO_VALUES, *, kind: Kind = "internal"
    ) -> None:
        """One span that ends now for each id, in the trace that follows from the id."""
        now_ns = time.time_ns()
        for id in ids:
            parent = trace_of_id(id)
            if parent is not None:
                self.record(what, parent, now_ns, {"angarium.id": id, **values}, kind=kind)

    async def close(self) -> None:
        """Send the remaining spans; takes at most FLUSH_S_MAX."""
        sdk = self._started
        if sdk is None:
            return
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            sdk.close()
            _call_in_loop(loop, done.set)

        # Not in the loop's executor: the process waits for its threads when it ends.
        threading.Thread(target=flush, name="angarium-traces", daemon=True).start()
        try:
            async with asyncio.timeout(FLUSH_S_MAX):
                await done.wait()
        except TimeoutError:
            log.logger("angarium.tracing").warning("traces_not_sent", waited_s=FLUSH_S_MAX)


class _Sdk:
    """All uses of the OpenTelemetry SDK."""

    def __init__(self, actor: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult

        class Ids(RandomIdGenerator):
            """Random ids, unless this thread has set the ids of the next span."""

            def __init__(self) -> None:
                self.wanted = threading.local()

            def generate_trace_id(self) -> int:
                own: Trace | None = getattr(self.wanted, "own", None)
                return super().generate_trace_id() if own is None else int(own.trace_id, 16)

            def generate_span_id(self) -> int:
                own: Trace | None = getattr(self.wanted, "own", None)
                return super().generate_span_id() if own is None else int(own.span_id, 16)

        class UniformSampler(Sampler):
            """The operator's sampler; it sees our ids as if all their bits were random."""

            def __init__(self, chosen: Sampler, ids: Ids) -> None:
                self._chosen = chosen
                self._ids = ids

            def should_sample(
                self, parent_context: Context | None, trace_id: int, *args: Any, **named: Any
            ) -> SamplingResult:
                ours = getattr(self._ids.wanted, "own", None) is not None
                id = _sampling_id(trace_id) if ours else trace_id
                return self._chosen.should_sample(parent_context, id, *args, **named)

            def get_description(self) -> str:
                return self._chosen.get_description()

        resource = Resource.create({SERVICE_INSTANCE_ID: actor})
        if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "angarium"}))
        self._ids = Ids()
        # This provider is used only to read the sampler that the environment sets.
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler
        self._provider: TracerProvider = TracerProvider(
            sampler=UniformSampler(self._sampler, self._ids),
            resource=resource,
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("angarium")

    def begin(
        self,
        name: str,
        parent: Trace | None,
        own: Trace | None,
        values: Values,
        kind: Kind,
        began_ns: int,
    ) -> Span:
        from opentelemetry.trace import SpanKind

        self._ids.wanted.own = own
        try:
            return self._tracer.start_span(
                name,
                self._context(parent),
                kind=SpanKind[kind.upper()],
                attributes=dict(values),
                start_time=began_ns,
            )
        finally:
            self._ids.wanted.own = None

    def _context(self, parent: Trace | None) -> Context:
        from opentelemetry.context import Context
        from opentelemetry.sdk.trace.sampling import Decision
        from opentelemetry.trace import (
            NonRecordingSpan,
            SpanContext,
            TraceFlags,
            set_span_in_context,
        )

        if parent is None:
            return Context()  # an empty one, not the current context of a user's code
        sampled = parent.sampled
        if sampled is None:
            # Not known. The process that began this trace asked the same sampler for the same id.
            root = self._sampler.should_sample(None, _sampling_id(int(parent.trace_id, 16)), "")
            sampled = root.decision is Decision.RECORD_AND_SAMPLE
        ids = int(parent.trace_id, 16), int(parent.span_id, 16)
        flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
        return set_span_in_context(NonRecordingSpan(SpanContext(*ids, True, flags)), Context())

    @contextmanager
    def current(self, span: Span) -> Iterator[None]:
        from opentelemetry.context import attach, detach
        from opentelemetry.trace import set_span_in_context

        token = attach(set_span_in_context(span))
        try:
            yield
        finally:
            detach(token)

    def fail(self, span: Span, problem: Exception | str) -> None:
        from opentelemetry.trace import Status, StatusCode

        if isinstance(problem, Exception):
            span.record_exception(problem)
            problem = f"{type(problem).__name__}: {problem}"
        span.set_status(Status(StatusCode.ERROR, problem[:500]))

    def close(self) -> None:
        self._provider.shutdown()


@contextmanager
def _no_context() -> Iterator[None]:
    yield


def _call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        return  # the loop is closed


def _sampling_id(trace_id: int) -> int:
    """The id that the sampler sees. Ratio samplers compare the lower 64 bits, which in a UUID begin
    with the two constant bits of the variant. A random digit replaces these bits."""

    return trace_id & ~(0xF << 60) | (trace_id >> 64 & 0xF) << 60


def _trace_of(span: Span) -> Trace:
    context = span.get_span_context()
    return Trace(f"{context.trace_id:032x}", f"{context.span_id:016x}", context.trace_flags.sampled)
