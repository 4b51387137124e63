"""Dispatch end to end, against BullMQ; with two leaders; with many messages already pending.

A message goes from a publisher's process through Redis, a dispatcher and a worker into the stream
of results, journal on. BullMQ gets the same messages on the same server: one producer that adds
them in bulk, one worker with a concurrency of 100, completed jobs removed. So ours keeps a result
and a journal of everything, and BullMQ keeps nothing. Beside them a plain stream, and as a limit
bare scripts that do the least for a batch (`plain_stream.py`).

`make bench ONLY=dispatch` runs all parts, with `PARTS=bullmq,leaders,pending` some.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.kit.leash import LeashedProcess
from tests.kit.server import ServerProcess

from benchmarks.end_to_end import Round, Spread, System, in_turn, measured, table, wait_for
from benchmarks.fabric import DEADLINE_S, Fabric
from benchmarks.node import BULLMQ, Peer, prepare
from benchmarks.plain_stream import PlainStream
from benchmarks.sizes import count, peers, rounds, sizes

ROUNDS = rounds(15)
# So many that a round takes about a second on two cores.
MESSAGES = count(30_000, least=100)
MESSAGES_BULLMQ = count(5_000, least=100)

ROUNDS_LEADERS = rounds(9)
# Every size in each pass, so that the machine's moods fall on all of them alike.
PASSES_PENDING = rounds(5)
SIZES_PENDING = sizes(10, 1_000, 10_000, 100_000, 1_000_000)
# Never due: they stay where they are, and all work is done beside them.
FILL = """
local now_ms = redis.call('TIME')[1] * 1000
for i = tonumber(ARGV[1]), tonumber(ARGV[2]) - 1 do
  local id = string.format('%08x-0000-4000-8000-000000000000', i)
  redis.call('ZADD', KEYS[1], string.format('%.0f', now_ms + 86400000 + i), id)
  redis.call('HSET', KEYS[2], id, '{"number":' .. i .. ',"text":"' .. string.rep('x', 40) .. '"}')
end
"""
FILL_STEP = 10_000
SETTLE_S = 1.0


class BullMQ:
    """One producer and one worker."""

    name = "BullMQ, one producer, one worker"

    def __init__(self, server: ServerProcess, peer: Peer) -> None:
        self._server = server
        self._peer = peer
        self._witness: Any = server.client(decode_responses=True)
        self._processes: dict[str, LeashedProcess] = {}
        self._wanted = 0

    def __enter__(self) -> Self:
        for role in ("producer", "worker"):
            self._processes[role] = self._start(role)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.close()

    def reset(self) -> None:
        """Completed jobs are gone already; its log of events is bounded by itself."""

    def run(self, messages: int) -> None:
        self._wanted += messages
        self._witness.rpush("benchmark:orders:bullmq", messages)
        wait_for(self._done, DEADLINE_S, f"{self.name}: {messages} jobs")

    def pids(self) -> Mapping[str, Sequence[int]]:
        return {role: [process.pid] for role, process in self._processes.items()}

    def _done(self) -> bool:
        return int(self._witness.get("benchmark:done:bullmq") or 0) >= self._wanted

    def _start(self, role: str) -> LeashedProcess:
        names = ["benchmark:orders:bullmq", "benchmark:done:bullmq"]
        argv = [*self._peer.argv, role, str(self._server.port), *names]
        process = LeashedProcess(argv, stdout=subprocess.PIPE)
        assert process.process.stdout is not None
        with process.process.stdout as stdout:
            line = stdout.readline()
        if not line or not json.loads(line)["ready"]:
            process.close()
            raise SystemExit(f"BullMQ's {role} did not start")
        return process


def bullmq() -> None:
    """Ratios are to BullMQ, or to the plain stream where it can't be had."""
    with ServerProcess() as server, ExitStack() as stack:
        witness = server.client(decode_responses=True)
        systems: dict[System, int] = {}
        peer = _peer()
        if peer is not None:
            systems[stack.enter_context(BullMQ(server, peer))] = MESSAGES_BULLMQ
        for mode in ("plain", "scripts"):
            systems[stack.enter_context(PlainStream(server, mode))] = MESSAGES
        fabric = Fabric("Angarium, one dispatcher, one worker", server)
        systems[stack.enter_context(fabric)] = MESSAGES
        versions = f", {peer.versions}" if peer is not None else ""
        print(f"## Dispatch, end to end ({_server(witness)}{versions})\n")
        print(table(in_turn(systems, witness, ROUNDS)))


def _peer() -> Peer | None:
    chosen = peers()
    if chosen is not None and "bullmq" not in chosen:
        return None
    try:
        return prepare(Path(__file__).with_name("bullmq") / "peer.mjs", "bullmq", BULLMQ)
    except SystemExit as error:
        print(f"(BullMQ can't be installed, and is left out: {error})\n")
        return None


def leaders() -> None:
    with ServerProcess() as server, ExitStack() as stack:
        witness = server.client(decode_responses=True)
        systems: dict[System, int] = {
            stack.enter_context(
                Fabric(name, server, prefix=prefix, partitions=parts, dispatchers=count)
            ): MESSAGES
            for name, prefix, parts, count in (
                ("one partition, one dispatcher", "a:", 1, 1),
                ("two partitions, one dispatcher", "b:", 2, 1),
                ("two partitions, two dispatchers", "c:", 2, 2),
            )
        }
        print(f"## Leaders ({_server(witness)})\n")
        print(table(in_turn(systems, witness, ROUNDS_LEADERS)))


def pending() -> None:
    with ServerProcess() as server, Fabric("pending", server) as ours:
        witness = server.client(decode_responses=True)
        ours.run(MESSAGES // 5)
        results: dict[int, list[Round]] = {size: [] for size in SIZES_PENDING}
        for _ in range(PASSES_PENDING):
            filled = 0
            for size in SIZES_PENDING:
                _fill(witness, ours, filled, size)
                _settle(witness, ours)
                filled = size
                results[size].append(measured(ours, MESSAGES, witness))
            witness.delete(*ours.pending, *ours.payloads)
        print(f"## With messages already pending ({_server(witness)})\n")
        print(_pending_table(results))


def _fill(witness: Any, fabric: Fabric, start: int, end: int) -> None:
    for first in range(start, end, FILL_STEP):
        last = min(first + FILL_STEP, end)
        witness.eval(FILL, 2, fabric.pending[0], fabric.payloads[0], first, last)


def _settle(witness: Any, fabric: Fabric) -> None:
    """Let Redis free what the last pass left and rehash what has grown; both go on for a while."""
    fabric.run(MESSAGES // 5)
    wait_for(
        lambda: int(witness.info("memory")["lazyfree_pending_objects"]) == 0,
        DEADLINE_S,
        "memory to be freed",
    )
    time.sleep(SETTLE_S)


def _pending_table(results: Mapping[int, Sequence[Round]]) -> str:
    base = results[SIZES_PENDING[0]]
    lines = [
        "| pending | messages/s | ratio | spread | Redis CPU µs | CPU ratio | CPU spread "
        "| script calls |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for size, found in results.items():
        pairs = list(zip(found, base, strict=True))
        rate = Spread.of([one.rate / other.rate for one, other in pairs])
        cpu = Spread.of([one.redis_us / other.redis_us for one, other in pairs])
        lines.append(
            f"| {size:,} | {statistics.median(one.rate for one in found):,.0f} "
            f"| {rate.median:.2f} | {rate.low:.2f}–{rate.high:.2f} "
            f"| {statistics.median(one.redis_us for one in found):.1f} "
            f"| {cpu.median:.2f} | {cpu.low:.2f}–{cpu.high:.2f} "
            f"| {statistics.median(one.scripts for one in found):.4f} |"
        )
    return "\n".join([*lines, "", f"{len(base)} passes."])


def _server(witness: Any) -> str:
    info = witness.info("server")
    version = info.get("valkey_version")
    return f"Valkey {version}" if version else f"Redis {info['redis_version']}"


PARTS: Mapping[str, Callable[[], None]] = {
    "bullmq": bullmq,
    "leaders": leaders,
    "pending": pending,
}


def main(parts: Sequence[str] = ()) -> None:
    named = os.environ.get("PARTS", "").split(",")
    for part in parts or [each for each in PARTS if each in named] or PARTS:
        PARTS[part]()
        print(flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
