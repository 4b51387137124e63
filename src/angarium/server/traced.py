"""Spans around a user's functions (a worker's, a step's, an inbox's) and around API operations.

Only where a collector is named (`runtime/tracing.py`): otherwise nothing is wrapped, and a call
costs what it always did. What a function does in the other modules hangs under its span, and so
does what it measures itself by OpenTelemetry.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from angarium.routing.items import InboundMessage
from angarium.runtime.application import Angarium, Handler
from angarium.runtime.http_api import Handle, Operation
from angarium.runtime.trace import CURRENT_WORK, TRACEPARENT, CurrentWork, read_traceparent
from angarium.runtime.tracing import Tracing, Values

NAMES = {"worker": "dispatch work", "step": "transactions step", "inbox": "routing inbox"}


def traced(app: Angarium, tracing: Tracing) -> Angarium:
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
    # The routing module has nothing in hand: a message's id is its trace there.
    in_hand = (
        CurrentWork(given.id.encode()) if isinstance(given, InboundMessage) else CURRENT_WORK.get()
    )
    if in_hand is None:
        yield
        return
    kept, token = in_hand.trace, CURRENT_WORK.set(in_hand)
    values: Values = {"angarium.id": in_hand.id}
    try:
        with tracing.span(name, in_hand.parent, values, kind="consumer", current=True) as own:
            in_hand.enter_span(own)
            yield
    finally:
        in_hand.enter_span(kept)
        CURRENT_WORK.reset(token)


def traced_handle(operation: Operation, handle: Handle, tracing: Tracing) -> Handle:
    """A caller that is in a trace gets a span of ours, and what it brings in hangs under that."""
    if operation.scope == "read":
        return handle

    async def traced_one(request: Request) -> Response:
        trace = read_traceparent(request.headers.get(TRACEPARENT))
        if trace is None:
            return await handle(request)
        with tracing.span(f"api {operation.name}", trace, kind="server") as own:
            name = TRACEPARENT.encode()
            others = [pair for pair in request.scope["headers"] if pair[0] != name]
            scope = {**request.scope, "headers": [*others, (name, own.header.encode())]}
            return await handle(Request(scope, request.receive))

    return traced_one
