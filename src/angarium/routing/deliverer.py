"""The role `deliverer`: outbound messages to the endpoints of their receivers.

Many deliveries are under way at once, in no promised order. An answer of 2xx is a delivery, all
else a failure: tried again after 5, 7.5, 11.2, 16.7 and 25 s, then a dead letter. So is at once
what can't be read, what may not be reached, and what has headers that users may not give. A
deliverer that dies has only borrowed its messages: another delivers them when the loan has run out.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from prometheus_client import Counter

from angarium.routing import items
from angarium.routing.errors import ItemInvalid
from angarium.routing.lanes import Lanes
from angarium.routing.listening import check_layout
from angarium.routing.mailbox import Pass
from angarium.routing.outbound_store import (
    TAKE_BYTES_MAX,
    Loan,
    OutboundStore,
    Settlement,
    is_foreign,
    shown_url,
)
from angarium.routing.status import Status, StatusDesk, status_socket
from angarium.routing.store import partition_in
from angarium.runtime.application import Angarium
from angarium.runtime.errors import AngariumError
from angarium.runtime.headers import HeaderRefused, check_headers
from angarium.runtime.outbound import Outbound, OutboundFailed, RequestRefused
from angarium.runtime.process_report import INTERVAL_S, ProcessReporter
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Loop, Service
from angarium.runtime.settings import Settings
from angarium.runtime.trace import TRACEPARENT, first_span, read_traceparent
from angarium.runtime.tracing import Values

POLL_S = 0.5
STATUS_S = 1.0
LANES_S = 0.5
# A receiver that hangs is asked again for its other messages after so long.
DEFERRED_MS = 2_000
REASON_CHARS_MAX = 500

DELIVERIES = Counter("angarium_deliveries", "Attempts of the deliverer.", ["outcome"])


def check(settings: Settings, app: Angarium) -> None:
    check_layout(settings)
    if settings.routing.status_host is not None and settings.routing.status_port is not None:
        status_socket(settings.routing.status_host, settings.routing.status_port).close()


def build(runtime: Runtime, app: Angarium) -> Service:
    return Deliverer(runtime)


class _Delivery(NamedTuple):
    """A message in hand. Without an item it can't be read, and the payload says why."""

    loan: Loan
    item: items.Outbound | None
    payload: bytes
    receiver: str


class Deliverer(Service):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("deliverer", clock=runtime.clock)
        self._runtime = runtime
        routing = runtime.settings.routing
        self._store = OutboundStore(runtime, routing.layout.value, routing.delivery_timeout_ms)
        self._deliveries_max = runtime.settings.limits.deliveries_max
        self._bytes_max = runtime.settings.limits.deliveries_bytes_max
        self._work: asyncio.Queue[_Delivery] = asyncio.Queue()
        self._lanes: Lanes[_Delivery] = Lanes()
        self._hot = [True] * self._store.partitions
        self._in_hand = 0
        self._bytes_in_hand = 0
        self._counts = {"delivered": 0, "retried": 0, "dead": 0, "deferred": 0}
        self._reported = 0
        self._status = Status(runtime, lambda: self.ready)
        self._status_desk = StatusDesk(self._status)
        self._figures = ProcessReporter(runtime, "deliverer")
        self._outbound: Outbound
        self._taking: Loop

    async def on_start(self) -> None:
        settings = self._runtime.settings
        self._outbound = Outbound(
            allow_private=settings.allow_private_addresses,
            timeout_s=settings.routing.delivery_timeout_ms / 1000,
        )
        if settings.routing.status_host is not None and settings.routing.status_port is not None:
            self.ports["status"] = await self._status_desk.open(
                settings.routing.status_host, settings.routing.status_port
            )
        self._taking = self.loop("take", self.take_once, POLL_S)
        self.spawn("hints", self._follow_hints)
        self.spawn("deliveries", self._deliveries)
        self.loop("lanes", self._defer_stuck, LANES_S, until="stop")
        self.loop("status", self._look, STATUS_S, until="stop")
        self.loop("figures", self._report, INTERVAL_S, until="stop")

    async def on_stop(self) -> None:
        """What is under way ends; what only waited here is left to others."""
        await self.passes_ended()
        await self._defer(self._lanes.drain(), 0)
        while self._in_hand > 0:
            await self.clock.sleep(0.01)
        await self._figures.withdraw()

    async def on_close(self) -> None:
        self._status_desk.close()
        if hasattr(self, "_outbound"):
            await self._outbound.close()

    async def take_once(self) -> Pass:
        """Borrow as much as there is space for; from all partitions, or where a hint pointed."""
        again = False
        for number in range(len(self._hot)):
            space = self._deliveries_max - self._in_hand
            space_bytes = min(TAKE_BYTES_MAX, self._bytes_max - self._bytes_in_hand)
            if space <= 0 or space_bytes <= 0:
                return Pass()  # whoever makes space wakes us
            if not self._hot[number]:
                continue
            loans = await self._store.take(number, space, space_bytes)
            taken_bytes = sum(len(loan.item) for loan in loans)
            self._hot[number] = more = len(loans) == space or taken_bytes >= space_bytes
            again = again or more
            self._in_hand += len(loans)
            self._bytes_in_hand += taken_bytes
            for loan in loans:
                self._line_up(loan)
        if not again:
            self._hot = [True] * len(self._hot)
        return Pass(again)

    async def _follow_hints(self) -> None:
        async with self._store.hints() as hints:
            while True:
                for message in (await hints.receive()).messages:
                    number = partition_in(message.payload, len(self._hot))
                    if number is not None:
                        self._hot[number] = True
                self._taking.wake()

    async def _deliveries(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._deliveries_max):
                group.create_task(self._deliver_next())

    def _line_up(self, loan: Loan) -> None:
        try:
            item, payload = items.decode_outbound(loan.item)
        except ItemInvalid as error:
            self._work.put_nowait(_Delivery(loan, None, str(error).encode(), ""))
            return
        delivery = _Delivery(loan, item, payload, receiver_of(item.url))
        if self._lanes.offer(delivery.receiver, delivery, self.clock.monotonic()):
            self._work.put_nowait(delivery)

    async def _deliver_next(self) -> None:
        while True:
            delivery = await self._work.get()
            try:
                await self._settle(await self._attempt(delivery))
            finally:
                if delivery.item is not None:
                    following = self._lanes.ended(delivery.receiver, self.clock.monotonic())
                    if following is not None:
                        self._work.put_nowait(following)

    async def _settle(self, end: Settlement) -> None:
        try:
            await self._store.settle(end)
            self._counts[end.outcome] += 1
            DELIVERIES.labels(end.outcome).inc()
        except AngariumError as error:
            # Delivered or not, its loan runs out and it is delivered once more.
            self.log.warning("loan_not_settled", error=str(error))
        finally:
            self._in_hand -= 1
            self._bytes_in_hand -= len(end.loan.item)
            if self._in_hand <= self._deliveries_max // 2:
                self._taking.wake()

    async def _defer_stuck(self) -> None:
        await self._defer(self._lanes.stuck(self.clock.monotonic()), DEFERRED_MS)

    async def _defer(self, deliveries: Sequence[_Delivery], delay_ms: int) -> None:
        """Back to the queue for a while, without counting as a failure."""
        async with asyncio.TaskGroup() as group:
            for each in deliveries:
                end = Settlement(
                    each.loan, "deferred", "", "", 0, each.loan.item, delay_ms=delay_ms
                )
                group.create_task(self._settle(end))

    async def _attempt(self, delivery: _Delivery) -> Settlement:
        loan, item = delivery.loan, delivery.item
        if item is None:
            name, problem = items.id_of(loan.item), delivery.payload.decode()
            self.log.error("item_unreadable", id=name, problem=problem)
            return Settlement(loan, "dead", name, "", 0, _as_text(loan.item), True, reason=problem)
        try:
            await self._send(item, delivery.payload)
        except OutboundFailed as error:
            return self._failed(loan, item, error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Something inside the client was cancelled, not this task.
            return self._failed(loan, item, OutboundFailed("cancelled from inside"))
        except Exception as error:
            # A fault of ours with one message must not end the deliveries of all others.
            self.log.error("delivery_broken", id=items.name_of(item), exc_info=error)
            return self._failed(loan, item, OutboundFailed(repr(error)))
        return self._ended(loan, item, "delivered")

    async def _send(self, item: items.Outbound, payload: bytes) -> None:
        headers = _headers_of(item)
        tracing = self._runtime.tracing
        if tracing is None:
            await self._post(item, payload, headers)
            return
        name = items.name_of(item)
        parent = first_span(name, read_traceparent(headers.get(TRACEPARENT)))
        values: Values = {"angarium.id": name, "angarium.attempt": item.failures + 1}
        with tracing.span("routing deliver", parent, values, kind="client"):
            await self._post(item, payload, headers)

    async def _post(self, item: items.Outbound, payload: bytes, headers: dict[str, str]) -> None:
        if item.url.startswith(("ws:", "wss:")):
            await self._send_websocket(item.url, payload, headers)
            return
        answer = await self._outbound.send("POST", item.url, payload, headers)
        if not answer.ok:
            raise OutboundFailed(f"answered {answer.status}")

    async def _send_websocket(self, url: str, payload: bytes, headers: dict[str, str]) -> None:
        socket = await self._outbound.open_websocket(url, headers)
        timeout_s = self._runtime.settings.routing.delivery_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                await socket.send_bytes(payload)
                # Its close frame comes back when the other side has read what was before it.
                await socket.close()
        except TimeoutError:
            raise OutboundFailed(f"not taken within {timeout_s:g} s") from None
        except (ConnectionError, RuntimeError) as error:
            raise OutboundFailed(f"{type(error).__name__}: {error}") from None
        finally:
            # Without any patience: only what is still open here gives its connection back.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await socket.close()
        if socket.close_code not in (1000, 1001, 1005):
            raise OutboundFailed(f"closed with {socket.close_code}")

    def _failed(self, loan: Loan, item: items.Outbound, error: OutboundFailed) -> Settlement:
        reason = str(error)[:REASON_CHARS_MAX]
        final = isinstance(error, RequestRefused) or item.failures >= len(items.RETRY_DELAYS_MS)
        self.log.warning(
            "delivery_failed", id=items.name_of(item), url=shown_url(item.url), reason=reason,
            attempt=item.failures + 1, final=final,
        )  # fmt: skip
        if final:
            return self._ended(loan, item, "dead", reason)
        return self._ended(loan, item, "retried", reason)

    def _ended(
        self, loan: Loan, item: items.Outbound, outcome: str, reason: str = ""
    ) -> Settlement:
        message, delay_ms = b"", 0
        if outcome == "retried":
            message = items.encode_outbound(items.retried(item))
            delay_ms = items.RETRY_DELAYS_MS[item.failures]
        elif outcome == "dead":
            message = items.encode_outbound(item)
        return Settlement(
            loan=loan,
            outcome=outcome,
            name=items.name_of(item),
            url=item.url,
            attempt=item.failures + 1,
            message=message,
            foreign=is_foreign(item),
            delay_ms=delay_ms,
            reason=reason,
        )

    async def _look(self) -> None:
        self._status_desk.sweep()
        await self._status.look()

    async def _report(self) -> None:
        delivered = self._counts["delivered"]
        figures: dict[str, Any] = {
            "in_hand": self._in_hand,
            **self._counts,
            "delivered_per_s": round((delivered - self._reported) / INTERVAL_S, 1),
        }
        self._reported = delivered
        await self._figures.report(figures)
        self.log.info("figures", **figures)


def _headers_of(item: items.Outbound) -> dict[str, str]:
    """Checked again: anybody who can write to Redis may have queued the item."""
    try:
        return check_headers(item.headers or {})
    except HeaderRefused as error:
        raise RequestRefused(str(error)) from None


def receiver_of(url: str) -> str:
    """The part of a URL that stands for one receiver: scheme, host and port."""
    return url[: url.find("/", url.find("://") + 3)] if url.count("/") > 2 else url


def _as_text(item: bytes) -> bytes:
    """Dead letters are JSON; bytes that are no text are kept in base64."""
    try:
        item.decode()
    except UnicodeDecodeError:
        return b"base64:" + base64.b64encode(item)
    return item
