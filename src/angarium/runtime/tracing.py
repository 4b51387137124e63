"""Spans for OpenTelemetry: one trace for each message, whichever modules and processes it passes.

`open_tracing` gives None unless the standard OTEL_EXPORTER_OTLP_ENDPOINT (or …_TRACES_ENDPOINT)
names a collector and the extra `otel` is installed; whoever could make a span asks for None first,
so that a process without a collector pays one comparison. The SDK is imported with the first span.
Spans are sent by a thread of the SDK, OTLP over HTTP; a collector that is away costs spans and
nothing else. Sampler, headers, batch sizes and the rest are OpenTelemetry's own variables.
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
from angarium.runtime.trace import Trace, carried_in, first_span, trace_of_id

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PACKAGES = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
# What is not sent by then is dropped: a process that stops must not wait for a collector.
FLUSH_S_MAX = 1.0
Kind = Literal["internal", "server", "client", "producer", "consumer"]
Values = Mapping[str, str | int]
NO_VALUES: Values = {}


def open_tracing(actor: str) -> Tracing | None:
    """Those of this process, as its environment asks for; None if it does not."""
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
    """Of the SDK, if it and the exporter are installed."""
    try:
        version(PACKAGES[1])
        return version(PACKAGES[0])
    except PackageNotFoundError:
        return None


class Tracing:
    """Makes spans. `Trace` is all that others see of one: a parent given, a span told."""

    def __init__(self, actor: str) -> None:
        self._actor = actor
        self._started: _Sdk | None = None
        self._starting = threading.Lock()

    @property
    def _sdk(self) -> _Sdk:
        if self._started is None:
            with self._starting:  # functions of the user's run in threads
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
        """What the block does; an exception that leaves it is the span's failure.

        With `current`, OpenTelemetry's own context has it too, for what a user's code measures.
        """
        span = self._sdk.begin(name, parent, None, values, kind, time.time_ns())
        try:
            with self._sdk.current(span) if current else _nothing():
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
        """Something that is over. `own` gives it ids that others know already."""
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
        """One span for each (id, payload). The `first` of a message has ids that follow from its
        own, so that the next ones need not be told whose children they are."""
        for message_id, payload in messages:
            id = message_id.decode()
            carried = carried_in(payload)
            own = first_span(id, carried)
            if own is None:
                continue
            named = {"angarium.message_id": id, **values}
            if first:
                self.record(name, carried, began_ns, named, own=own, kind="consumer")
            else:
                self.record(name, own, began_ns, named, kind="producer")

    def started(self, id: str, what: str, began_ns: int, values: Values = NO_VALUES) -> None:
        """What begins a trace of its own: the id of that follows from its own."""
        own = trace_of_id(id)
        if own is not None:
            self.record(what, None, began_ns, values, own=own, kind="producer")

    def when_queued(
        self, id: str, what: str, future: asyncio.Future[Any], carried: Trace | None = None
    ) -> None:
        """What begins with being queued: over when the future is."""
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
        """What happens now to things whose traces follow from their ids."""
        now_ns = time.time_ns()
        for id in ids:
            parent = trace_of_id(id)
            if parent is not None:
                self.record(what, parent, now_ns, {"angarium.id": id, **values}, kind=kind)

    async def close(self) -> None:
        """Send what is left, for a moment at the most."""
        sdk = self._started
        if sdk is None:
            return
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            sdk.close()
            _tell(loop, done.set)

        # A thread of our own: the loop's executor would be waited for at the process's end.
        threading.Thread(target=flush, name="angarium-traces", daemon=True).start()
        try:
            async with asyncio.timeout(FLUSH_S_MAX):
                await done.wait()
        except TimeoutError:
            log.logger("angarium.tracing").warning("traces_not_sent", waited_s=FLUSH_S_MAX)


class _Sdk:
    """The one place that knows OpenTelemetry."""

    def __init__(self, actor: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult

        class Ids(RandomIdGenerator):
            """Random, unless this thread has said which ones the next span has."""

            def __init__(self) -> None:
                self.wanted = threading.local()

            def generate_trace_id(self) -> int:
                own: Trace | None = getattr(self.wanted, "own", None)
                return super().generate_trace_id() if own is None else int(own.trace_id, 16)

            def generate_span_id(self) -> int:
                own: Trace | None = getattr(self.wanted, "own", None)
                return super().generate_span_id() if own is None else int(own.span_id, 16)

        class Fair(Sampler):
            """The operator's, asked about an id of ours as if all its bits were random."""

            def __init__(self, chosen: Sampler, ids: Ids) -> None:
                self._chosen = chosen
                self._ids = ids

            def should_sample(
                self, parent_context: Context | None, trace_id: int, *args: Any, **named: Any
            ) -> SamplingResult:
                ours = getattr(self._ids.wanted, "own", None) is not None
                id = _fair(trace_id) if ours else trace_id
                return self._chosen.should_sample(parent_context, id, *args, **named)

            def get_description(self) -> str:
                return self._chosen.get_description()

        resource = Resource.create({SERVICE_INSTANCE_ID: actor})
        if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "angarium"}))
        self._ids = Ids()
        # What the environment asks for, told by a provider that is used for nothing else.
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler
        self._provider: TracerProvider = TracerProvider(
            sampler=Fair(self._sampler, self._ids),
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
            return Context()  # an empty one: not whatever a user's code has as current
        sampled = parent.sampled
        if sampled is None:
            # Nobody told us; whoever began this trace asked the same sampler for the same id.
            root = self._sampler.should_sample(None, _fair(int(parent.trace_id, 16)), "")
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
def _nothing() -> Iterator[None]:
    yield


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        return  # it did not wait for us


def _fair(trace_id: int) -> int:
    """Samplers by ratio compare the lower 64 bits, and those of a UUID begin with its variant:
    the same two bits in all of them. The random digit before takes their place."""
    return trace_id & ~(0xF << 60) | (trace_id >> 64 & 0xF) << 60


def _trace_of(span: Span) -> Trace:
    context = span.get_span_context()
    return Trace(f"{context.trace_id:032x}", f"{context.span_id:016x}", context.trace_flags.sampled)
