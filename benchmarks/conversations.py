"""Replies through request → pending → can_send → sent → ack, against the same keys touched bare.

Each task goes through all five steps of a reply, one await each, as a process does. The bare
contender touches the same keys by as many calls through the same batching, without a check, an
answer or a journal: what is left is the price of order, states and accounting. Then: the time
from an ACK to the send of the next reply, in one process and across two.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import sys
import time
from typing import Any, NamedTuple

import uvloop
from tests.kit.sample import sample_runtime
from tests.kit.server import ServerProcess

from angarium.conversations import keys
from angarium.conversations.instance import ConversationsInstance
from angarium.conversations.model import MinMessageInfo, OutgoingReply, TaskItem
from angarium.conversations.script_values import NewReply
from angarium.conversations.store import ConversationStore
from angarium.runtime.application import Application
from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition
from benchmarks.measure import Contender, compare, table
from benchmarks.sizes import count, rounds

TASKS = 256
REPLIES = count(10_000, least=TASKS)
ROUNDS = rounds(11)
TASK = b'{"messageOptions":{"payload":"' + b"x" * 100 + b'"}}'
HANDOVERS = count(500, least=5)
STEPS = ("request", "pending", "check", "sent", "ack")
SPAN = 1 << 26


class TouchStep(NamedTuple):
    step: str


class TouchItem(NamedTuple):
    conversation_id: str
    request_id: str
    response_id: str
    async_request_id: str
    task: bytes
    member: bytes
    score: str


TOUCH: Transition[TouchItem] = Transition(
    "benchmarks",
    "touch_conversation",
    keys={"pending": keys.PENDING_MESSAGES, "open": keys.OPEN_REQUESTS},
    args=TouchStep,
    item=TouchItem,
    item_keys={
        "request": keys.CONVERSATION_REQUEST,
        "response": keys.CONVERSATION_RESPONSE,
        "requests": keys.CONVERSATION_REQUESTS,
        "responses": keys.CONVERSATION_RESPONSES,
        "order": keys.CONVERSATION_ORDER,
        "ack": keys.ASYNC_REQUEST,
    },
    replies=dict.fromkeys(STEPS),
)


def main() -> None:
    uvloop.run(_main())


async def _main() -> None:
    with ServerProcess() as server:
        witness = server.client(decode_responses=True)
        async with (
            sample_runtime(server.url) as on,
            sample_runtime(server.url, journal={"enabled": False}) as off,
            sample_runtime(server.url, journal={"enabled": False}) as bare,
        ):
            print(f"## Replies through their five steps, {TASKS} tasks\n")
            contenders = {
                "bare script, same keys": spread(_Bare(bare).reply),
                "Angarium, journal off": spread(Ours(off).reply),
                "Angarium, journal on": spread(Ours(on).reply),
            }
            rows = await compare(contenders, witness, items=REPLIES, rounds=ROUNDS)
            print(table(rows, "replies"))
            witness.flushall()
        await _handovers(server)


class Ours:
    def __init__(self, runtime: Runtime) -> None:
        self._store = ConversationStore(runtime)

    async def reply(self, name: str) -> None:
        store = self._store
        info = MinMessageInfo(f"rq{name}", f"rs{name}", f"cn{name}")
        await store.create_request(
            MinMessageInfo(info.request_id, "", info.conversation_id), "bench", 1, ""
        )
        new = NewReply(
            info.conversation_id, info.request_id, info.response_id, 1, TASK, "", hold="near"
        )
        await store.accept_reply(new)
        verdict = await store.check_reply(info, only_mine=True)
        assert verdict.status == "send"
        await store.report_sent(info, f"ak{name}")
        await store.finish(info, "acknowledged", f"ak{name}")


class _Bare:
    """The same ids, keys and calls; one script that only touches."""

    def __init__(self, runtime: Runtime) -> None:
        self._steps = [runtime.batch(TOUCH, TouchStep(step)) for step in STEPS]

    async def reply(self, name: str) -> None:
        info = MinMessageInfo(f"rq{name}", f"rs{name}", f"cn{name}")
        item = TouchItem(
            info.conversation_id, info.request_id, info.response_id, f"ak{name}", TASK,
            info.key(), str(SPAN + 1),
        )  # fmt: skip
        for step in self._steps:
            await step.submit(0, item, None, len(TASK))


def spread(reply: Any) -> Contender:
    counter = itertools.count()

    async def task(items: int) -> None:
        for _ in range(items):
            await reply(str(next(counter)))

    async def contend(items: int) -> None:
        await asyncio.gather(*(task(items // TASKS) for _ in range(TASKS)))

    return contend


async def _handovers(server: ServerProcess) -> None:
    """From the ACK of the reply ahead to the send of the next, one conversation at a time."""
    print("\n## From an ACK to the send of the next reply\n")
    print("| | median ms | p99 ms |\n|---|---:|---:|")
    for name, times in (("one process", _in_one), ("two processes", _across_two)):
        took = sorted(await times(server))
        p99 = took[int(len(took) * 0.99)]
        print(f"| {name} | {statistics.median(took):.2f} | {p99:.2f} |", flush=True)


class _Left:
    """A sender that tells when each reply left."""

    def __init__(self) -> None:
        self.app = Application()
        self.times: asyncio.Queue[int] = asyncio.Queue()
        self.app.reply_sender()(self.send)

    async def send(self, reply: OutgoingReply) -> str:
        self.times.put_nowait(time.monotonic_ns())
        return f"ack-{reply.response_id}"


async def _in_one(server: ServerProcess) -> list[float]:
    left, took = _Left(), []
    async with sample_runtime(server.url) as runtime:
        bridge = ConversationsInstance(runtime, left.app)
        await bridge.start()
        for number in range(HANDOVERS):
            name = f"c{number}"
            await bridge.request(name, name, "bench")
            await bridge.reply(name, name, f"{name}-0", TaskItem())
            await left.times.get()
            await bridge.reply(name, name, f"{name}-1", TaskItem())
            while bridge.queue.parked == 0:
                await asyncio.sleep(0.0005)
            began = time.monotonic_ns()
            await bridge.acknowledge(f"ack-{name}-0", name)
            took.append((await left.times.get() - began) / 1e6)
            await bridge.acknowledge(f"ack-{name}-1", name)
        await bridge.stop(10)
    return took


async def _across_two(server: ServerProcess) -> list[float]:
    """The second reply is held by a process of its own; the clock is the machine's."""
    left, took = _Left(), []
    async with sample_runtime(server.url) as runtime:
        env = {"ANGARIUM_REDIS_URL": server.url, "ANGARIUM_PREFIX": runtime.settings.prefix}
        peer = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.conversations_peer",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, env={**os.environ, **env},
        )  # fmt: skip
        assert peer.stdin is not None
        assert peer.stdout is not None
        await peer.stdout.readline()
        bridge = ConversationsInstance(runtime, left.app)
        await bridge.start()
        for number in range(HANDOVERS):
            name = f"c{number}"
            await bridge.request(name, name, "bench")
            await bridge.reply(name, name, f"{name}-0", TaskItem())
            await left.times.get()
            peer.stdin.write(f"{name} {name} {name}-1\n".encode())
            await peer.stdout.readline()
            began = time.monotonic_ns()
            await bridge.acknowledge(f"ack-{name}-0", name)
            _, at_ns = (await peer.stdout.readline()).split()
            took.append((int(at_ns) - began) / 1e6)
            await bridge.acknowledge(f"ack-{name}-1", name)
        peer.stdin.write(b"\n")
        await peer.wait()
        await bridge.stop(10)
    return took
