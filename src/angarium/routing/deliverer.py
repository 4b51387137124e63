"""The role `deliverer`: sends outbound messages to the endpoints of their receivers.

Many deliveries run at once, in no promised order. A status of 2xx is a success. Anything else is a
failure: the deliverer retries after 5, 7.5, 11.2, 16.7 and 25 s, and then makes a dead letter. An
item that can't be read, an address that may not be reached and headers that users may not set make
a dead letter at once. The deliverer leases its messages: when it dies, another one delivers them
after the leases have expired.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from prometheus_client import Counter

from angarium.routing import items
from angarium.routing.consumer import RoutingPass
from angarium.routing.errors import ItemInvalid
from angarium.routing.host_limiter import HostLimiter
from angarium.routing.limits import RoutingLimits
from angarium.routing.outbound_store import (
    TAKE_BYTES_MAX,
    DeliveryLease,
    OutboundStore,
    Settlement,
    is_foreign,
    url_for_display,
)
from angarium.routing.role_settings import check_layout
from angarium.routing.settings import RoutingSettings
from angarium.routing.status import RoleStatus, StatusServer, check_status_port
from angarium.routing.store import hinted_partition
from angarium.runtime.application import Application
from angarium.runtime.errors import AngariumError
from angarium.runtime.headers import HeaderRefused, check_headers
from angarium.runtime.outbound import Outbound, OutboundFailed, RequestRefused
from angarium.runtime.process_report import INTERVAL_S, ProcessReporter
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Loop, Service
from angarium.runtime.settings import CommonSettings
from angarium.runtime.trace import TRACEPARENT, first_span, read_traceparent
from angarium.runtime.tracing import Values

POLL_S = 0.5
STATUS_S = 1.0
DEFER_S = 0.5
# Messages that waited for a slow host are taken again after this time.
DEFERRED_MS = 2_000
REASON_CHARS_MAX = 500

DELIVERIES = Counter("angarium_deliveries", "Attempts of the deliverer.", ["outcome"])


def check(settings: CommonSettings, app: Application) -> None:
    check_layout(settings)
    check_status_port(settings)


def build(runtime: Runtime, app: Application) -> Service:
    return Deliverer(runtime)


class _Delivery(NamedTuple):
    """A leased message. When the item can't be read, it is None and the payload is the reason."""

    lease: DeliveryLease
    item: items.OutboundItem | None
    payload: bytes
    host: str


class Deliverer(Service):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("deliverer", clock=runtime.clock)
        self._runtime = runtime
        routing = runtime.settings.group(RoutingSettings)
        self._store = OutboundStore(runtime, routing.layout.value, routing.delivery_timeout_ms)
        self._deliveries_max = runtime.settings.limits_of(RoutingLimits).deliveries_max
        self._bytes_max = runtime.settings.limits_of(RoutingLimits).deliveries_bytes_max
        self._work: asyncio.Queue[_Delivery] = asyncio.Queue()
        self._limiter: HostLimiter[_Delivery] = HostLimiter()
        self._has_work = [True] * self._store.partitions  # per partition: worth a look
        self._leased = 0
        self._leased_bytes = 0
        self.counts = {"delivered": 0, "retried": 0, "dead": 0, "deferred": 0}
        self._reported = 0
        self._status = RoleStatus(runtime, lambda: self.ready)
        self._status_server = StatusServer(self._status)
        self._reporter = ProcessReporter(runtime, "deliverer")
        self._outbound: Outbound
        self._taking: Loop

    async def on_start(self) -> None:
        settings = self._runtime.settings
        self._outbound = Outbound(
            allow_private=settings.allow_private_addresses,
            timeout_s=settings.group(RoutingSettings).delivery_timeout_ms / 1000,
            limits=settings.limits,
        )
        self.ports |= await self._status_server.open(settings)
        self._taking = self.loop("take", self.take_once, POLL_S)
        self.spawn("hints", self._follow_hints)
        self.spawn("deliveries", self._deliveries)
        self.loop("slow_hosts", self._defer_waiting_for_slow, DEFER_S, until="stop")
        self.loop("status", self._check_status, STATUS_S, until="stop")
        self.loop("report", self._report, INTERVAL_S, until="stop")

    async def on_stop(self) -> None:
        """Finish the deliveries under way; give the waiting ones back at once."""
        await self.passes_ended()
        await self._defer(self._limiter.remove_waiting(), 0)
        while self._leased > 0:
            await self.clock.sleep(0.01)
        await self._reporter.withdraw()

    async def on_close(self) -> None:
        self._status_server.close()
        if hasattr(self, "_outbound"):
            await self._outbound.close()

    async def take_once(self) -> RoutingPass:
        """Lease as much as there is space for, from the partitions that may have work."""
        again = False
        for number in range(len(self._has_work)):
            space = self._deliveries_max - self._leased
            space_bytes = min(TAKE_BYTES_MAX, self._bytes_max - self._leased_bytes)
            if space <= 0 or space_bytes <= 0:
                return RoutingPass()  # `_settle` wakes this loop when there is space
            if not self._has_work[number]:
                continue
            leases = await self._store.take(number, space, space_bytes)
            taken_bytes = sum(len(lease.item) for lease in leases)
            self._has_work[number] = more = len(leases) == space or taken_bytes >= space_bytes
            again = again or more
            self._leased += len(leases)
            self._leased_bytes += taken_bytes
            for lease in leases:
                self._enqueue(lease)
        if not again:
            self._has_work = [True] * len(self._has_work)
        return RoutingPass(again)

    async def _follow_hints(self) -> None:
        async with self._store.hints() as hints:
            while True:
                for message in (await hints.receive()).messages:
                    number = hinted_partition(message.payload, len(self._has_work))
                    if number is not None:
                        self._has_work[number] = True
                self._taking.wake()

    async def _deliveries(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._deliveries_max):
                group.create_task(self._deliver_next())

    def _enqueue(self, lease: DeliveryLease) -> None:
        try:
            item, payload = items.decode_outbound(lease.item)
        except ItemInvalid as error:
            self._work.put_nowait(_Delivery(lease, None, str(error).encode(), ""))
            return
        delivery = _Delivery(lease, item, payload, host_of(item.url))
        if self._limiter.start(delivery.host, delivery, self.clock.monotonic()):
            self._work.put_nowait(delivery)

    async def _deliver_next(self) -> None:
        while True:
            delivery = await self._work.get()
            try:
                await self._settle(await self._attempt(delivery))
            finally:
                if delivery.item is not None:
                    following = self._limiter.finish(delivery.host, self.clock.monotonic())
                    if following is not None:
                        self._work.put_nowait(following)

    async def _settle(self, end: Settlement) -> None:
        try:
            await self._store.settle(end)
            self.counts[end.outcome] += 1
            DELIVERIES.labels(end.outcome).inc()
        except AngariumError as error:
            # The lease expires, and the message is delivered again.
            self.log.warning("delivery_not_settled", error=str(error))
        finally:
            self._leased -= 1
            self._leased_bytes -= len(end.lease.item)
            if self._leased <= self._deliveries_max // 2:
                self._taking.wake()

    async def _defer_waiting_for_slow(self) -> None:
        waiting = self._limiter.remove_waiting_for_slow(self.clock.monotonic())
        await self._defer(waiting, DEFERRED_MS)

    async def _defer(self, deliveries: Sequence[_Delivery], delay_ms: int) -> None:
        """Put the messages back for this time; it does not count as a failure."""
        async with asyncio.TaskGroup() as group:
            for each in deliveries:
                end = Settlement(
                    each.lease, "deferred", "", "", 0, each.lease.item, delay_ms=delay_ms
                )
                group.create_task(self._settle(end))

    async def _attempt(self, delivery: _Delivery) -> Settlement:
        lease, item = delivery.lease, delivery.item
        if item is None:
            name, problem = items.id_of(lease.item), delivery.payload.decode()
            self.log.error("item_unreadable", id=name, problem=problem)
            return Settlement(
                lease, "dead", name, "", 0, _as_text(lease.item), True, reason=problem
            )
        try:
            await self._send(item, delivery.payload)
        except OutboundFailed as error:
            return self._failed(lease, item, error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The HTTP client cancelled something inside itself; this task is not cancelled.
            return self._failed(lease, item, OutboundFailed("cancelled from inside"))
        except Exception as error:
            # A bug that shows with one message must not end the deliveries of all others.
            self.log.error("delivery_broken", id=items.outbound_id(item), exc_info=error)
            return self._failed(lease, item, OutboundFailed(repr(error)))
        return self._ended(lease, item, "delivered")

    async def _send(self, item: items.OutboundItem, payload: bytes) -> None:
        headers = _headers_of(item)
        tracing = self._runtime.tracing
        if tracing is None:
            await self._post(item, payload, headers)
            return
        name = items.outbound_id(item)
        parent = first_span(name, read_traceparent(headers.get(TRACEPARENT)))
        values: Values = {"angarium.id": name, "angarium.attempt": item.failures + 1}
        with tracing.span("routing deliver", parent, values, kind="client"):
            await self._post(item, payload, headers)

    async def _post(
        self, item: items.OutboundItem, payload: bytes, headers: dict[str, str]
    ) -> None:
        if item.url.startswith(("ws:", "wss:")):
            await self._send_websocket(item.url, payload, headers)
            return
        answer = await self._outbound.send("POST", item.url, payload, headers)
        if not answer.ok:
            raise OutboundFailed(f"answered {answer.status}")

    async def _send_websocket(self, url: str, payload: bytes, headers: dict[str, str]) -> None:
        socket = await self._outbound.open_websocket(url, headers)
        timeout_s = self._runtime.settings.group(RoutingSettings).delivery_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                await socket.send_bytes(payload)
                # The peer answers the close frame after it has read the message before it.
                await socket.close()
        except TimeoutError:
            raise OutboundFailed(f"not taken within {timeout_s:g} s") from None
        except (ConnectionError, RuntimeError) as error:
            raise OutboundFailed(f"{type(error).__name__}: {error}") from None
        finally:
            # Does not wait: it only returns a connection that is still open.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await socket.close()
        if socket.close_code not in (1000, 1001, 1005):
            raise OutboundFailed(f"closed with {socket.close_code}")

    def _failed(
        self, lease: DeliveryLease, item: items.OutboundItem, error: OutboundFailed
    ) -> Settlement:
        reason = str(error)[:REASON_CHARS_MAX]
        final = isinstance(error, RequestRefused) or item.failures >= len(items.RETRY_DELAYS_MS)
        self.log.warning(
            "delivery_failed", id=items.outbound_id(item), url=url_for_display(item.url),
            reason=reason, attempt=item.failures + 1, final=final,
        )  # fmt: skip
        if final:
            return self._ended(lease, item, "dead", reason)
        return self._ended(lease, item, "retried", reason)

    def _ended(
        self, lease: DeliveryLease, item: items.OutboundItem, outcome: str, reason: str = ""
    ) -> Settlement:
        message, delay_ms = b"", 0
        if outcome == "retried":
            message = items.encode_outbound(items.with_failure(item))
            delay_ms = items.RETRY_DELAYS_MS[item.failures]
        elif outcome == "dead":
            message = items.encode_outbound(item)
        return Settlement(
            lease=lease,
            outcome=outcome,
            name=items.outbound_id(item),
            url=item.url,
            attempt=item.failures + 1,
            message=message,
            foreign=is_foreign(item),
            delay_ms=delay_ms,
            reason=reason,
        )

    async def _check_status(self) -> None:
        self._status_server.close_overdue()
        await self._status.check()

    async def _report(self) -> None:
        delivered = self.counts["delivered"]
        metrics: dict[str, Any] = {
            "in_hand": self._leased,
            **self.counts,
            "delivered_per_s": round((delivered - self._reported) / INTERVAL_S, 1),
        }
        self._reported = delivered
        await self._reporter.report(metrics)
        self.log.debug("metrics", **metrics)


def _headers_of(item: items.OutboundItem) -> dict[str, str]:
    """Checks the headers again: any program that writes to Redis may have queued the item."""
    try:
        return check_headers(item.headers or {})
    except HeaderRefused as error:
        raise RequestRefused(str(error)) from None


def host_of(url: str) -> str:
    """Scheme, host and port of a URL."""
    return url[: url.find("/", url.find("://") + 3)] if url.count("/") > 2 else url


def _as_text(item: bytes) -> bytes:
    """Dead letters are JSON, so bytes that are no text become base64."""
    try:
        item.decode()
    except UnicodeDecodeError:
        return b"base64:" + base64.b64encode(item)
    return item
