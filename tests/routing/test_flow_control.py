"""The bytes that a relay and a deliverer hold are bounded, and paused connections resume."""

from __future__ import annotations

import asyncio

import pytest

from angarium.routing.deliverer import Deliverer
from angarium.routing.flow_control import RESUMED_TOGETHER, FlowControl
from angarium.routing.outbound_store import LEASE_MS, OutboundStore, Settlement
from angarium.routing.relay import Relay
from angarium.runtime.errors import Overloaded
from tests.kit.clock import FakeClock
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime
from tests.kit.server import ServerProcess
from tests.routing.harness import envelope, routing
from tests.security.wire import dialled, frame, handshake

PATIENCE_S = 60.0


class Connection:
    def __init__(self, resumed: list[Connection]) -> None:
        self._resumed = resumed

    def resume(self) -> None:
        self._resumed.append(self)


async def test_paused_connections_resume_in_their_order_when_half_is_stored() -> None:
    flow, resumed = FlowControl(100), list[Connection]()
    flow.message_received(60)
    assert not flow.full
    flow.message_received(60)
    assert flow.full
    waiting = [Connection(resumed) for _ in range(3 * RESUMED_TOGETHER)]
    for each in waiting:
        flow.pause(each)
    gone = waiting.pop(1)
    flow.remove(gone)
    flow.message_released(60)
    await asyncio.sleep(0)
    assert resumed == []
    flow.message_released(60)
    await asyncio.sleep(0)
    assert resumed == waiting[:RESUMED_TOGETHER]
    # Nothing is stored any more, and still none is forgotten.
    await eventually(lambda: resumed == waiting)


async def test_connections_stay_paused_when_the_resumed_ones_fill_the_relay_again() -> None:
    flow, resumed = FlowControl(100), list[Connection]()
    flow.message_received(100)
    waiting = [Connection(resumed) for _ in range(2 * RESUMED_TOGETHER)]
    for each in waiting:
        flow.pause(each)
    flow.message_released(100)
    await asyncio.sleep(0)
    flow.message_received(100)
    assert len(resumed) == RESUMED_TOGETHER
    flow.message_released(100)
    await eventually(lambda: resumed == waiting)


async def test_partial_messages_over_the_limit_are_refused() -> None:
    flow = FlowControl(100)
    flow.partial_grew(100)
    with pytest.raises(Overloaded, match="relay_bytes_max"):
        flow.partial_grew(1)
    flow.partial_grew(-101)
    flow.partial_grew(100)


@pytest.mark.parametrize(
    "limits",
    [
        {"relay_bytes_max": 20_000},
        {"relay_connection_messages_max": 3},
        {"relay_connection_bytes_max": 5_000},
    ],
)
@pytest.mark.limit("relay_bytes_max", "relay_connection_messages_max", "relay_connection_bytes_max")
async def test_all_messages_of_many_connections_arrive_in_order_however_small_the_limits(
    limits: dict[str, int],
) -> None:
    with ServerProcess() as server:
        async with sample_runtime(server.url, routing=ANY, limits=limits) as runtime:
            relay = Relay(runtime)
            await relay.start()
            try:
                server.pause()
                sending = [asyncio.create_task(send(relay, number)) for number in range(20)]
                await eventually(lambda: relay.flow.complete_bytes >= 10_000, PATIENCE_S)
                server.resume()
                await asyncio.gather(*sending)
                client = server.client()
                for number in range(20):
                    name = f"{runtime.settings.prefix}acapy_inbound_key{number}"
                    assert client.llen(name) == 50
                await eventually(
                    lambda: relay.flow.complete_bytes == relay.flow.partial_bytes == 0, PATIENCE_S
                )
            finally:
                server.resume()
                await relay.stop(5)


ANY = {"inbound": [["http", "127.0.0.1", 0], ["ws", "127.0.0.1", 0]]}


async def send(relay: Relay, number: int) -> None:
    """Fifty messages on one WebSocket; done when the last one has its direct answer, or none."""
    async with dialled(relay.ports["ws"]) as (reader, writer):
        writer.write(handshake())
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(50):
            writer.write(frame(envelope(f"key{number}", text="x" * 1_000)))
            await writer.drain()
        # Control frames are read in their turn, so this one comes back behind all messages.
        writer.write(frame(b"last", 0x89))
        async with asyncio.timeout(PATIENCE_S):
            assert (await reader.readexactly(6))[2:] == b"last"
        stored = f"key{number}"
        await eventually(lambda: _stored(relay, stored, 50), PATIENCE_S)


async def _stored(relay: Relay, key: str, messages: int) -> bool:
    return (await relay.store.show(key)).waiting == messages


async def test_a_deliverer_takes_no_more_bytes_than_it_may_hold(redis_url: str) -> None:
    async with routing(redis_url, limits={"deliveries_bytes_max": 10_000}) as (runtime, _):
        store = OutboundStore(runtime, "native")
        for _ in range(10):
            await store.push("http://receiver.example/", b"x" * 3_000, {})
        deliverer = Deliverer(runtime)
        # Three of 4 kB: the third one goes over it. Then it waits until some have ended.
        assert (await deliverer.take_once()).again
        assert not (await deliverer.take_once()).again
        assert len(await store.take(0, 100, 1_000_000)) == 10 - 3


async def test_new_messages_retries_and_expired_leases_are_bounded_in_bytes(
    redis_url: str,
) -> None:
    clock = FakeClock()
    async with routing(redis_url, clock=clock) as (runtime, _):
        store = OutboundStore(runtime, "native")
        for _ in range(4):
            await store.push("http://receiver.example/", b"x" * 3_000, {})
        assert len(await store.take(0, 100, 1)) == 1
        leases = await store.take(0, 100, 1_000_000)
        assert len(leases) == 3
        clock.jump(LEASE_MS + 1)
        assert len(await store.take(0, 100, 5_000)) == 2
        again = await store.take(0, 100, 1_000_000)
        assert len(again) == 2
        for lease in again:
            end = Settlement(lease, "retried", "n", "u", 1, lease.item, delay_ms=1)
            assert await store.settle(end) == "settled"
        clock.jump(LEASE_MS // 2)
        assert len(await store.take(0, 100, 1)) == 1
        assert len(await store.take(0, 100, 1)) == 1
        assert await store.take(0, 100, 1) == []
