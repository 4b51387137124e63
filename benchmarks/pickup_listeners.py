"""Which WebSocket listener the gateway should stand on: picows, uvicorn or websockets.

Each answers a JSON-RPC call of 1.2 KB with a short result and does nothing else; 16 clients keep 64
calls under way. The rivals come from a registry into an environment of their own, at run time.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import time
import venv
from pathlib import Path

import uvloop
from tests.kit.ports import free_port

from benchmarks.measure import ATTEMPTS_MAX, STEAL_MAX, cpu_times, steal_since
from benchmarks.pickup_driver import Wire, add_params, connect
from benchmarks.sizes import rounds

CACHE = Path(__file__).parents[1] / ".cache" / "listeners"
ROUNDS = rounds(5)
CALLS, CLIENTS, IN_FLIGHT = 30_000, 16, 64
TICK = os.sysconf("SC_CLK_TCK")

PICOWS = """
import asyncio, sys, uvloop
from picows import WSListener, WSMsgType, ws_create_server
class Echo(WSListener):
    def on_ws_frame(self, transport, frame):
        data = frame.get_payload_as_bytes()
        number = data[data.rindex(b":") + 1 : -1]
        transport.send(WSMsgType.TEXT, b'{"jsonrpc":"2.0","result":"pong","id":%b}' % number)
async def main():
    server = await ws_create_server(lambda request: Echo(), "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()
uvloop.run(main())
"""
UVICORN = """
import sys, uvicorn
async def app(scope, receive, send):
    if scope["type"] != "websocket":
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        data = message["text"]
        number = data[data.rindex(":") + 1 : -1]
        text = '{"jsonrpc":"2.0","result":"pong","id":%s}' % number
        await send({"type": "websocket.send", "text": text})
uvicorn.run(app, port=int(sys.argv[1]), loop="uvloop", ws=sys.argv[2], lifespan="off",
            log_level="error", ws_per_message_deflate=False)
"""
WEBSOCKETS = """
import asyncio, sys, uvloop
from websockets.asyncio.server import serve
async def handle(socket):
    async for data in socket:
        number = data[data.rindex(":") + 1 : -1]
        await socket.send('{"jsonrpc":"2.0","result":"pong","id":%s}' % number)
async def main():
    async with serve(handle, "127.0.0.1", int(sys.argv[1]), compression=None) as server:
        await server.serve_forever()
uvloop.run(main())
"""
LISTENERS = {
    "uvicorn (websockets)": (UVICORN, ["websockets-sansio"]),
    "websockets": (WEBSOCKETS, []),
    "picows": (PICOWS, []),
}


def main() -> None:
    python = _environment()
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in LISTENERS}
    for _ in range(ROUNDS):
        for name, (source, arguments) in LISTENERS.items():
            figures[name].append(_round(python, source, arguments))
    print(f"## A listener alone, {CLIENTS} clients, {IN_FLIGHT} calls under way\n")
    print("| | calls/s | ratio | spread | CPU µs per call |\n|---|---:|---:|---:|---:|")
    base = [rate for rate, _ in next(iter(figures.values()))]
    for name, found in figures.items():
        ratios = [rate / other for (rate, _), other in zip(found, base, strict=True)]
        print(
            f"| {name} | {statistics.median(rate for rate, _ in found):,.0f} "
            f"| {statistics.median(ratios):.2f} | {min(ratios):.2f}–{max(ratios):.2f} "
            f"| {statistics.median(cpu for _, cpu in found):.1f} |"
        )


def _environment() -> str:
    python = CACHE / "v" / "bin" / "python"
    if not python.exists():
        venv.create(CACHE / "v", with_pip=True)
        wanted = ["uvicorn", "websockets", "uvloop", "httptools", "picows"]
        subprocess.run([str(python), "-m", "pip", "install", "-q", *wanted], check=True)
    return str(python)


def _round(python: str, source: str, arguments: list[str]) -> tuple[float, float]:
    port = free_port()
    with subprocess.Popen([python, "-c", source, str(port), *arguments]) as server:
        try:
            for _ in range(ATTEMPTS_MAX):
                stolen = cpu_times()
                rate, cpu_us = uvloop.run(_drive(port, server.pid))
                if steal_since(stolen) <= STEAL_MAX:
                    break
        finally:
            server.kill()
    return rate, cpu_us


async def _drive(port: int, pid: int) -> tuple[float, float]:
    wires = await _connected(port)
    done = asyncio.get_running_loop().create_future()
    sent = answered = 0
    params = add_params(b"c1")

    def next_one(wire: Wire) -> None:
        nonlocal sent
        if sent < CALLS:
            sent += 1
            wire.send(b"addMessage", params, lambda _: on_answer(wire))

    def on_answer(wire: Wire) -> None:
        nonlocal answered
        answered += 1
        if answered == CALLS:
            done.set_result(None)
        next_one(wire)

    cpu, began = _process_s(pid), time.perf_counter()
    for number in range(IN_FLIGHT):
        next_one(wires[number % CLIENTS])
    await done
    seconds, cpu_s = time.perf_counter() - began, _process_s(pid) - cpu
    for wire in wires:
        wire.transport.disconnect()
    return CALLS / seconds, cpu_s * 1e6 / CALLS


async def _connected(port: int) -> list[Wire]:
    for _ in range(200):
        try:
            return [await connect(f"ws://127.0.0.1:{port}/") for _ in range(CLIENTS)]
        except OSError:
            await asyncio.sleep(0.05)
    raise SystemExit("the listener does not answer")


def _process_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK
