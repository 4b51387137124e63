"""The client side of the pickup benchmark, a process of its own: `python -m … URL CASE JSON`.

Bare sockets and prepared bytes, so that what is measured is the gateway. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

# As large as what the known gateway was measured with.
PAYLOAD = b'{"protected":"%b","iv":"i","ciphertext":"c","tag":"t"}' % (b"x" * 1_150)
ID = re.compile(rb'"id":"([0-9a-f]{32})"')
DID = b"did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"


class Wire(WSListener):
    """Calls by number; deliveries go to `live`."""

    def __init__(self) -> None:
        super().__init__()
        self.live: Callable[[bytes, list[bytes]], None] = lambda queue, ids: None
        self._numbers = 0
        self._waiting: dict[int, Callable[[bytes], None]] = {}
        self._out: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self.transport: WSTransport

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            return
        data = frame.get_payload_as_bytes()
        if data.startswith(b'{"jsonrpc":"2.0","method"'):
            start = data.index(b'"connectionId":"') + 16
            self.live(data[start : data.index(b'"', start)], ID.findall(data))
            return
        if data.startswith(b'{"jsonrpc":"2.0","error"'):
            raise SystemExit(data[:300])
        self._waiting.pop(int(data[data.rindex(b":") + 1 : -1]))(data)

    def send(self, method: bytes, params: bytes, done: Callable[[bytes], None]) -> None:
        self._numbers += 1
        self._waiting[self._numbers] = done
        call = b'{"jsonrpc":"2.0","method":"%b","params":%b,"id":%d}'
        text = call % (method, params, self._numbers)
        if not self._out:
            self._loop.call_soon(self._flush)
        size = len(text)
        # A mask of zeroes is one like any other, and leaves the text as it is.
        if size < 126:
            self._out.append(b"\x81%c\0\0\0\0" % (0x80 | size))
        elif size < 65_536:
            self._out.append(b"\x81\xfe" + size.to_bytes(2, "big") + b"\0\0\0\0")
        else:
            raise SystemExit("the driver's calls are not so large")
        self._out.append(text)

    def _flush(self) -> None:
        """What one turn of the loop has to say, in one write."""
        data = b"".join(self._out)
        self._out.clear()
        self.transport.underlying_transport.write(data)

    def call(self, method: bytes, params: bytes) -> asyncio.Future[bytes]:
        future: asyncio.Future[bytes] = self._loop.create_future()
        self.send(method, params, future.set_result)
        return future


async def connect(url: str) -> Wire:
    _, wire = await ws_connect(Wire, url)
    assert isinstance(wire, Wire)
    return wire


def add_params(queue: bytes) -> bytes:
    return b'{"connectionId":"%b","recipientDids":["%b"],"payload":%b}' % (queue, DID, PAYLOAD)


def remove_params(queue: bytes, ids: list[bytes]) -> bytes:
    listed = b",".join(b'"%b"' % each for each in ids)
    return b'{"connectionId":"%b","messageIds":[%b]}' % (queue, listed)


def names(count: int) -> list[bytes]:
    stamp = time.time_ns()
    return [b"b%d-%d" % (stamp, number) for number in range(count)]


async def open_sessions(wires: list[Wire], queues: list[bytes]) -> None:
    for start in range(0, len(queues), 200):
        opening = [
            wires[number % len(wires)].call(
                b"addLiveSession", b'{"connectionId":"%b","sessionId":"s"}' % queue
            )
            for number, queue in enumerate(queues[start : start + 200], start)
        ]
        await asyncio.gather(*opening)


async def add(url: str, *, messages: int, in_flight: int, queues: int = 16) -> dict[str, Any]:
    """addMessage alone, in a closed loop."""
    wire, listed = await connect(url), names(queues)
    done = asyncio.get_running_loop().create_future()
    sent = answered = 0

    def next_one(_: bytes = b"") -> None:
        nonlocal sent, answered
        answered += 1 if _ else 0
        if answered == messages:
            done.set_result(None)
        if sent < messages:
            sent += 1
            wire.send(b"addMessage", add_params(listed[sent % queues]), next_one)

    began = time.perf_counter()
    for _ in range(in_flight):
        next_one()
    await done
    return {"rate": messages / (time.perf_counter() - began)}


async def live(
    url: str, *, messages: int, in_flight: int, sessions: int, remove: bool
) -> dict[str, Any]:
    """Add → live delivery (→ removal), in a closed loop of `in_flight`."""
    writer, reader, queues = await connect(url), await connect(url), names(sessions)
    done = asyncio.get_running_loop().create_future()
    sent = received = removed = 0

    def next_one() -> None:
        nonlocal sent
        if sent < messages:
            sent += 1
            writer.send(b"addMessage", add_params(queues[sent % sessions]), lambda _: None)

    def on_live(queue: bytes, ids: list[bytes]) -> None:
        nonlocal received
        received += len(ids)
        if remove:
            reader.send(
                b"removeMessages", remove_params(queue, ids), lambda _: on_removed(len(ids))
            )
        elif received == messages:
            done.set_result(None)
        for _ in ids:
            next_one()

    def on_removed(count: int) -> None:
        nonlocal removed
        removed += count
        if removed == messages:
            done.set_result(None)

    reader.live = on_live
    await open_sessions([reader], queues)
    began = time.perf_counter()
    for _ in range(in_flight):
        next_one()
    await done
    return {"rate": messages / (time.perf_counter() - began)}


async def take(url: str, *, messages: int, queues: int, limit: int = 10) -> dict[str, Any]:
    """Take and remove from queues that were filled before."""
    wire, listed = await connect(url), names(queues)
    for queue in listed:
        for _ in range(0, messages // queues, 100):
            await asyncio.gather(*(wire.call(b"addMessage", add_params(queue)) for _ in range(100)))

    async def empty(queue: bytes) -> int:
        taken = 0
        params = b'{"connectionId":"%b","limit":%d}' % (queue, limit)
        while ids := ID.findall(await wire.call(b"takeFromQueue", params)):
            taken += len(ids)
            await wire.call(b"removeMessages", remove_params(queue, ids))
        return taken

    began = time.perf_counter()
    taken = sum(await asyncio.gather(*map(empty, listed)))
    assert taken == messages
    return {"rate": messages / (time.perf_counter() - began)}


async def depth(url: str, *, waiting: int, turns: int = 300) -> dict[str, Any]:
    """What a take and a removal cost when so many wait: median ms for ten messages."""
    wire, queue = await connect(url), names(1)[0]
    for start in range(0, waiting, 500):
        count = min(500, waiting - start)
        await asyncio.gather(*(wire.call(b"addMessage", add_params(queue)) for _ in range(count)))
    took = []
    params = b'{"connectionId":"%b","limit":10}' % queue
    for _ in range(min(turns, waiting // 10)):
        began = time.perf_counter()
        ids = ID.findall(await wire.call(b"takeFromQueue", params))
        await wire.call(b"removeMessages", remove_params(queue, ids))
        took.append((time.perf_counter() - began) * 1000)
    return {"p50_ms": statistics.median(took)}


async def latency(
    url: str, *, sessions: int, per_s: int, seconds: float, clients: int = 1
) -> dict[str, Any]:
    """Added → received at a fixed rate, whatever the gateway does meanwhile."""
    writer = await connect(url)
    readers = [await connect(url) for _ in range(clients)]
    queues = names(sessions)
    took: list[float] = []
    begun: dict[bytes, list[float]] = {queue: [] for queue in queues}
    for reader in readers:

        def on_live(queue: bytes, ids: list[bytes], reader: Wire = reader) -> None:
            now = time.perf_counter()
            for _ in ids:
                took.append((now - begun[queue].pop(0)) * 1000)
            reader.send(b"removeMessages", remove_params(queue, ids), lambda _: None)

        reader.live = on_live
    await open_sessions(readers, queues)
    total, sent, began = int(per_s * seconds), 0, time.perf_counter()
    while sent < total:
        # Late ones count from when they should have left: nothing is hidden by waiting.
        due = min(total, int((time.perf_counter() - began) * per_s) + 1)
        while sent < due:
            queue = queues[sent % sessions]
            begun[queue].append(began + sent / per_s)
            writer.send(b"addMessage", add_params(queue), lambda _: None)
            sent += 1
        await asyncio.sleep(0.0005)
    for _ in range(3_000):
        if len(took) >= total:
            break
        await asyncio.sleep(0.01)
    cuts = statistics.quantiles(took, n=100)
    return {"received": len(took), "sent": total, "p50_ms": cuts[49], "p99_ms": cuts[98]}


async def crowd(url: str, *, clients: int, messages: int = 2_000) -> dict[str, Any]:
    """So many clients, each with a live session; then some mail for all of them."""
    wires: list[Wire] = []
    began = time.perf_counter()
    for start in range(0, clients, 100):
        wires += await asyncio.gather(*(connect(url) for _ in range(min(100, clients - start))))
    queues = names(clients)
    await open_sessions(wires, queues)
    opened_s = time.perf_counter() - began
    print(json.dumps({"opened": clients}), flush=True)
    received = 0

    def on_live(queue: bytes, ids: list[bytes]) -> None:
        nonlocal received
        received += len(ids)

    for wire in wires:
        wire.live = on_live
    began = time.perf_counter()
    for start in range(0, messages, 200):
        adding = [
            wires[0].call(b"addMessage", add_params(queues[(start + each) * 7 % clients]))
            for each in range(200)
        ]
        await asyncio.gather(*adding)
    while received < messages:
        await asyncio.sleep(0.001)
    seconds = time.perf_counter() - began
    return {"opened_s": opened_s, "rate": messages / seconds, "received": received}


async def main() -> None:
    url, case, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    cases: dict[str, Any] = {
        "add": add, "live": live, "take": take, "depth": depth, "latency": latency, "crowd": crowd,
    }  # fmt: skip
    print(json.dumps(await cases[case](url, **options)), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
