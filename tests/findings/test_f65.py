"""F65: one frame of a few kilobytes with takes in it made the gateway hold all their answers.

Memory is measured at a gateway process, as its peak from one moment to another. The bounds are far
above what the limits allow, and far below what 0.1.0 took.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from angarium.pickup.store import PickupStore
from tests.findings.pickup_wire import (
    DID,
    connected,
    environment,
    opened_store,
    status_of_queue,
    url_of,
)
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess

MIB = 1024 * 1024
PAYLOAD = "x" * (500 * 1024)
# By the defaults: 8 MiB of one answer, 16 MiB for one client, 32 MiB unread cut it off.
MESSAGES = 240
GROWTH_MIB_MAX = 110


def forget_peak(pid: int) -> int:
    """Begin to measure the peak anew; what the process has now, in MiB."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _status(pid, "VmRSS")


def peak(pid: int) -> int:
    return _status(pid, "VmHWM")


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = (line for line in lines if line.startswith(name))
    return int(found.split()[1]) // 1024


def take(number: int, connection: str = "c1", **more: Any) -> dict[str, Any]:
    params = {"connectionId": connection, **more}
    return {"jsonrpc": "2.0", "method": "takeFromQueue", "params": params, "id": number}


async def fill(store: PickupStore, connection: str, count: int) -> list[str]:
    """Put messages there, past the gateway."""
    ids = [f"0a{number:030d}" for number in range(count)]
    payload = json.dumps(PAYLOAD).encode()
    queue = f"default:{connection}"
    await asyncio.gather(*(store.add(queue, each, DID, payload) for each in ids))
    return ids


@asynccontextmanager
async def deaf(role: RoleProcess) -> AsyncIterator[tuple[asyncio.StreamReader, Any]]:
    """A socket that does not read: little more than its own small buffers takes what is sent."""
    plain = socket.create_connection(("127.0.0.1", role.ports["gateway"]))
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
    reader, writer = await asyncio.open_connection(sock=plain, limit=1024)
    writer.write(
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    await reader.readuntil(b"\r\n\r\n")
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def masked(value: Any) -> bytes:
    data = json.dumps(value).encode()
    size = len(data)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return b"\x81" + length + bytes(4) + data


async def settled(store: PickupStore, connection: str, total: int) -> tuple[int, int, int]:
    """Pending, sending and removed, when three looks in a row saw the same."""
    seen: list[tuple[int, int, int]] = []

    async def same() -> bool:
        found = await status_of_queue(store, connection)
        seen.append((found.pending, found.sending, total - found.pending - found.sending))
        return len(seen) > 20 and len(set(seen[-20:])) == 1 and seen[-1] != (total, 0, 0)

    await eventually(same, 60)
    return seen[-1]


async def test_a_batch_of_takes_is_answered_within_its_budget_and_the_rest_stays_pending(
    redis_url: str, tmp_path: Path
) -> None:
    env = environment(redis_url, tmp_path)
    async with (
        RoleProcess(["serve", "gateway"], env) as role,
        connected(url_of(role)) as wire,
        opened_store(env) as store,
    ):
        ids = await fill(store, "c1", MESSAGES)
        before = forget_peak(role.pid)
        frame = json.dumps([take(number) for number in range(51)])
        assert len(frame) < 6_000
        await wire.socket.send_str(frame)
        answers = {each["id"]: each for each in await wire.hear()}
        growth = peak(role.pid) - before
        assert len(answers) == 51
        answered = [each["id"] for found in answers.values() for each in found.get("result", [])]
        assert answered == ids[: len(answered)], "in order, each once"
        assert 8 * MIB < len(answered) * len(PAYLOAD) <= 16 * MIB
        codes = {each["error"]["code"] for each in answers.values() if "error" in each}
        assert codes == {-32006}
        figures = await status_of_queue(store, "c1")
        assert (figures.sending, figures.pending) == (len(answered), MESSAGES - len(answered))
        assert growth < GROWTH_MIB_MAX, f"the gateway grew by {growth} MiB"
        rest = (await wire.ask("takeFromQueue", {"connectionId": "c1"}))["result"]
        assert [each["id"] for each in rest] == ids[len(answered) :][: len(rest)]
        assert rest


async def test_a_client_that_asks_and_never_reads_does_not_grow_the_gateway(
    redis_url: str, tmp_path: Path
) -> None:
    env = environment(redis_url, tmp_path)
    async with (
        RoleProcess(["serve", "gateway"], env) as role,
        connected(url_of(role)) as wire,
        opened_store(env) as store,
    ):
        await fill(store, "c1", MESSAGES)
        before = forget_peak(role.pid)
        async with deaf(role) as (_, writer):
            for number in range(60):
                writer.write(masked(take(number)))
            _, sending, removed = await settled(store, "c1", MESSAGES)
            growth = peak(role.pid) - before
            assert removed == 0
            assert 0 < sending * len(PAYLOAD) < 28 * MIB, "what a client and the kernel may hold"
            assert growth < GROWTH_MIB_MAX, f"the gateway grew by {growth} MiB"
        assert (await wire.ask("ping"))["result"] == "pong"


async def test_what_a_client_never_got_is_not_deleted_and_comes_back_when_it_is_gone(
    redis_url: str, tmp_path: Path
) -> None:
    env = environment(redis_url, tmp_path)
    total = 40
    async with (
        RoleProcess(["serve", "gateway"], env) as role,
        opened_store(env) as store,
    ):
        await fill(store, "c1", total)
        async with deaf(role) as (_, writer):
            for number in range(total):
                writer.write(masked(take(number, limit=1, deleteMessages=True)))
            _, sending, removed = await settled(store, "c1", total)
            assert sending > 0
            assert removed * len(PAYLOAD) < 12 * MIB, "what the kernel may hold"

        async def given_back() -> bool:
            # Long before sending_ms, a minute, is over.
            return (await status_of_queue(store, "c1")).sending == 0

        await eventually(given_back, 20)
        assert (await status_of_queue(store, "c1")).pending == total - removed


async def test_live_deliveries_wait_in_redis_for_a_client_that_reads_slowly(
    redis_url: str, tmp_path: Path
) -> None:
    env = environment(redis_url, tmp_path)
    waiting, added = 60, 80
    async with (
        RoleProcess(["serve", "gateway"], env) as role,
        connected(url_of(role)) as sender,
        connected(url_of(role)) as slow,
        opened_store(env) as store,
    ):
        sent = {f"q{number}": await fill(store, f"q{number}", 2) for number in range(waiting)}
        await slow.ask("addLiveSession", {"connectionId": "c1", "sessionId": "s"})
        before = forget_peak(role.pid)
        for connection in sent:
            params = {"connectionId": connection, "sessionId": "s"}
            call = {"jsonrpc": "2.0", "method": "addLiveSession", "params": params, "id": 0}
            await slow.socket.send_str(json.dumps(call))
        # It does not read while 40 MiB more come for a session that had nothing waiting.
        sent["c1"] = [await sender.add("c1", PAYLOAD) for _ in range(added)]
        growth = peak(role.pid) - before
        assert growth < GROWTH_MIB_MAX, f"the gateway grew by {growth} MiB"
        found: dict[str, list[str]] = {connection: [] for connection in sent}
        while any(len(found[each]) < len(sent[each]) for each in sent):
            heard = await slow.hear()
            if heard.get("method") == "messagesReceived":
                params = heard["params"]
                found[params["connectionId"]] += [each["id"] for each in params["messages"]]
        assert found == sent, "all of them, once, in order"
        assert (await status_of_queue(store, "c1")).sending == added


async def test_a_client_whose_calls_wait_for_redis_is_not_read_from_without_end(
    tmp_path: Path,
) -> None:
    calls = 300
    with ServerProcess() as server:
        env = environment(server.url, tmp_path)
        async with RoleProcess(["serve", "gateway"], env) as role, connected(url_of(role)) as wire:
            before = forget_peak(role.pid)
            sent = 0

            async def write() -> None:
                nonlocal sent
                for number in range(calls):
                    params = {"connectionId": "c1", "recipientDids": [DID], "payload": PAYLOAD}
                    call = {"jsonrpc": "2.0", "method": "addMessage", "params": params}
                    await wire.socket.send_str(json.dumps({**call, "id": number}))
                    sent += 1

            seen: list[int] = []

            def stands_still() -> bool:
                seen.append(sent)
                return len(seen) > 20 and len(set(seen[-20:])) == 1 and sent > 0

            async with asyncio.TaskGroup() as tasks:
                with server.paused():
                    writing = tasks.create_task(write())
                    await eventually(stands_still, 30)
                    growth = peak(role.pid) - before
                answered = [(await wire.hear())["id"] for _ in range(calls)]
                await writing
            assert growth < 60, f"the gateway grew by {growth} MiB"
            assert sorted(answered) == list(range(calls)), "all are answered when Redis is back"


async def test_a_batch_has_no_more_calls_than_its_limit(redis_url: str, tmp_path: Path) -> None:
    env = environment(redis_url, tmp_path, ANGARIUM_LIMITS__PICKUP_BATCH_CALLS_MAX="3")
    async with RoleProcess(["serve", "gateway"], env) as role, connected(url_of(role)) as wire:
        ping = {"jsonrpc": "2.0", "method": "ping", "id": 1}
        await wire.socket.send_str(json.dumps([ping] * 3))
        assert len(await wire.hear()) == 3
        await wire.socket.send_str(json.dumps([ping] * 4))
        assert (await wire.hear())["error"]["code"] == -32600
        assert (await wire.ask("ping"))["result"] == "pong"


async def test_a_take_that_nobody_would_get_an_answer_to_takes_nothing(
    redis_url: str, tmp_path: Path
) -> None:
    env = environment(redis_url, tmp_path)
    async with RoleProcess(["serve", "gateway"], env) as role, connected(url_of(role)) as wire:
        await wire.add("c1", 1)
        notification = take(1, deleteMessages=True)
        del notification["id"]
        await wire.socket.send_str(json.dumps(notification))
        await wire.socket.send_str(json.dumps([notification]))
        assert (await wire.ask("ping"))["result"] == "pong"
        count = await wire.ask("getAvailableMessageCount", {"connectionId": "c1"})
        assert count["result"] == 1
