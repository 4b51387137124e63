"""Wraps application functions (of workers, steps, inboxes) and API operations in spans.

Without a collector (`runtime/tracing.py`) nothing is wrapped, so calls cost nothing extra. Calls of
a function to other modules, and its own OpenTelemetry spans, are children of the function's span.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from angarium.routing.items import InboundMessage
from angarium.runtime.application import Application, Handler
from angarium.runtime.http_api import Handle, Operation
from angarium.runtime.trace import CURRENT_WORK, TRACEPARENT, CurrentWork, read_traceparent
from angarium.runtime.tracing import Tracing, Values

NAMES = {"worker": "dispatch work", "step": "transactions step", "inbox": "routing inbox"}


def traced(app: Application, tracing: Tracing) -> Application:
    def wrap(handler: Handler) -> Callable[..., Any]:
        if handler.kind not in NAMES:
            return (
                handler.function
            )  # senders of replies: `reply_to_pickup.py` has the whole sending
        return _wrapped(handler, tracing)

    return app.wrapped(wrap)


def _wrapped(handler: Handler, tracing: Tracing) -> Callable[..., Any]:
    function = handler.function
    name = NAMES[handler.kind]
    if handler.kind == "step":
        name = f"{name} {handler.name}"

    if handler.is_async:

        @functools.wraps(function)
        async def call(given: Any) -> Any:
            with _span(tracing, name, given):
                return await function(given)

    else:

        @functools.wraps(function)
        def call(given: Any) -> Any:
            with _span(tracing, name, given):
                return function(given)

    return call


@contextmanager
def _span(tracing: Tracing, name: str, given: Any) -> Iterator[None]:
    # Routing sets no current work: a message's trace is derived from its id.
    work = (
        CurrentWork(given.id.encode()) if isinstance(given, InboundMessage) else CURRENT_WORK.get()
    )
    if work is None:
        yield
        return
    before, token = work.trace, CURRENT_WORK.set(work)
    values: Values = {"angarium.id": work.id}
    try:
        with tracing.span(name, work.parent, values, kind="consumer", current=True) as own:
            work.enter_span(own)
            yield
    finally:
        work.enter_span(before)
        CURRENT_WORK.reset(token)


def traced_handle(operation: Operation, handle: Handle, tracing: Tracing) -> Handle:
    """Give a request with a traceparent a span, which is the parent of the operation's spans."""
    if operation.scope == "read":
        return handle

    async def with_span(request: Request) -> Response:
        trace = read_traceparent(request.headers.get(TRACEPARENT))
        if trace is None:
            return await handle(request)
        with tracing.span(f"api {operation.name}", trace, kind="server") as own:
            name = TRACEPARENT.encode()
            others = [pair for pair in request.scope["headers"] if pair[0] != name]
            scope = {**request.scope, "headers": [*others, (name, own.header.encode())]}
            return await handle(Request(scope, request.receive))

    return with_span
