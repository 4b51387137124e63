"""The limits of dispatch: connections to a worker, and messages of one request."""

from __future__ import annotations

import asyncio

import pytest

from angarium.dispatch.protocol import encode_heartbeat
from tests.dispatch.harness import dispatch_services
from tests.dispatch.test_http import api_harness
from tests.kit.eventually import eventually


@pytest.mark.limit("worker_connections_max")
async def test_a_worker_full_of_connections_accepts_one_when_another_has_gone(
    redis_url: str,
) -> None:
    async with dispatch_services(redis_url, limits={"worker_connections_max": 2}) as ours:
        worker = await ours.add_worker()
        address = ("127.0.0.1", worker.ports["worker"])
        # A connection counts as a dispatcher's when its first frame has come.
        held = [await asyncio.open_connection(*address) for _ in range(2)]
        for _, each in held:
            each.write(encode_heartbeat())
        await eventually(lambda: worker.dispatchers == 2)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(encode_heartbeat())
        async with asyncio.timeout(30):
            assert await _ended(reader)
        writer.close()
        for _, each in held:
            each.close()
        await eventually(lambda: worker.dispatchers == 0)
        await ours.add_dispatcher()
        await ours.publish(b'{"n":1}')
        assert len(await ours.wait_for_results(1)) == 1


@pytest.mark.limit("received_messages_max", "received_bytes_max")
@pytest.mark.parametrize("limit", [{"received_messages_max": 5}, {"received_bytes_max": 50}])
async def test_a_dispatcher_full_of_received_messages_reads_on_when_it_has_handled_them(
    redis_url: str, limit: dict[str, int]
) -> None:
    """Redis buffers meanwhile."""
    async with dispatch_services(redis_url, limits=limit) as ours:
        await ours.add_dispatcher()
        await ours.add_worker()
        assert set(await ours.store.publish_all([b'{"n":%d}' % n for n in range(2_000)])) == {1}
        assert len(await ours.wait_for_results(2_000)) == 2_000


async def _ended(reader: asyncio.StreamReader) -> bool:
    try:
        while await reader.read(1_000):
            continue
    except ConnectionResetError:
        return True
    return True


@pytest.mark.limit("intake_messages_max")
async def test_a_request_with_too_many_messages_adds_nothing(redis_url: str) -> None:
    async with api_harness(redis_url, limits={"intake_messages_max": 3}) as ours:
        answer = await ours.post([{"payload": n} for n in range(4)])
        assert (answer.status, answer.body["code"]) == (413, "limit_exceeded")
        assert await ours.inbox() == {}
        assert (await ours.post([{"payload": n} for n in range(3)])).status == 202
