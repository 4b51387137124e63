"""What a queued message takes of Redis' memory: in each module, in BullMQ, and in a plain stream.

100,000 messages of about 65 bytes wait, and nobody takes them. The difference of `used_memory` is
divided by their number; what the journal took of it stands apart, for it is read and trimmed. The
server has the limits for compact hashes and sorted sets that the embedded server has.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from tests.kit.leash import LeashedProcess
from tests.kit.roles import RoleProcess
from tests.kit.sample import sample_runtime
from tests.kit.server import ServerProcess

from angarium.conversations.model import MinMessageInfo
from angarium.conversations.script_values import NewReply
from angarium.conversations.store import ConversationStore
from angarium.dispatch.store import DispatchStore
from angarium.pickup.store import PickupStore
from angarium.redis.embedded.supervisor import COMPACT
from angarium.routing.store import RoutingRules, RoutingStore
from angarium.runtime import keys
from angarium.runtime.runtime import Runtime
from angarium.transactions.model import TransactionStart
from angarium.transactions.pipeline import pipeline_of
from angarium.transactions.pipeline_store import PipelineStore
from angarium.transactions.store import TransactionStore
from benchmarks.end_to_end import wait_for
from benchmarks.fabric import DEADLINE_S, ORDERS
from benchmarks.node import BULLMQ, prepare
from benchmarks.publisher import payload
from benchmarks.sizes import count, peers

MESSAGES = count(100_000, least=500)
AT_ONCE = 1_000
KEYS = 1_000
HOUR_MS = 3_600_000
TEXT = json.dumps(payload(1)).encode()

Fill = Callable[[Runtime], Awaitable[None]]


def main() -> None:
    print(f"## Memory of a queued message, {MESSAGES:,} of {len(TEXT)} bytes\n")
    print("| | bytes per message | of the journal beside it | keys per message |")
    print("|---|---:|---:|---:|", flush=True)
    _show("plain stream, XADD", *_plain())
    chosen = peers()
    if chosen is None or "bullmq" in chosen:
        try:
            _show("BullMQ, waiting job", *_bullmq())
        except SystemExit as error:
            print(f"\n(BullMQ is left out: {error})")
    _show("Angarium dispatch, pending", *_pending())
    for name, fill in MODULES.items():
        _show(f"Angarium {name}", *uvloop.run(_module(fill)))


def _show(name: str, used: float, journal: float, names: float) -> None:
    print(f"| {name} | {used:,.0f} | {journal:,.0f} | {names:.2f} |", flush=True)


def _used(witness: Any) -> int:
    return int(witness.info("memory")["used_memory"])


def _plain() -> tuple[float, float, float]:
    with ServerProcess() as server:
        witness = server.client()
        before = _used(witness)
        for _ in range(0, MESSAGES, AT_ONCE):
            pipeline = witness.pipeline(transaction=False)
            for _ in range(AT_ONCE):
                pipeline.xadd("plain", {"payload": TEXT})
            pipeline.execute()
        added = witness.xlen("plain")
        return (_used(witness) - before) / added, 0.0, 1 / added


def _bullmq() -> tuple[float, float, float]:
    peer = prepare(Path(__file__).with_name("bullmq") / "peer.mjs", "bullmq", BULLMQ)
    with ServerProcess() as server, ExitStack() as stack:
        witness = server.client(decode_responses=True)
        argv = [*peer.argv, "producer", str(server.port), "orders", "done"]
        process = LeashedProcess(argv, stdout=subprocess.PIPE)
        stack.callback(process.close)
        assert process.process.stdout is not None
        with process.process.stdout as stdout:
            assert json.loads(stdout.readline())["ready"]
        before = _used(witness)
        witness.rpush("orders", MESSAGES)
        waiting = "bull:benchmark:wait"
        wait_for(lambda: witness.llen(waiting) >= MESSAGES, DEADLINE_S, "BullMQ's jobs")
        return (_used(witness) - before) / MESSAGES, 0.0, witness.dbsize() / MESSAGES


def _pending() -> tuple[float, float, float]:
    """Published, accepted by a dispatcher, and no worker there."""
    with ServerProcess() as server, _dispatching(server) as witness:
        before = _used(witness)
        witness.rpush(ORDERS, f"{MESSAGES} 0")
        pending = "messages:pending"
        wait_for(lambda: witness.zcard(pending) >= MESSAGES, DEADLINE_S, "pending messages")
        journal = witness.memory_usage("journal", samples=0) or 0
        used = _used(witness) - before - journal
        return used / MESSAGES, journal / MESSAGES, witness.dbsize() / MESSAGES


@contextmanager
def _dispatching(server: ServerProcess) -> Iterator[Any]:
    env = {"ANGARIUM_REDIS_URL": server.url, "ANGARIUM_DISPATCH__ACK_PORT": "0"}
    channel = "messages:published"
    with (
        RoleProcess(["serve", "dispatcher"], env),
        RoleProcess(["-m", "benchmarks.publisher", server.url, channel, ORDERS]),
    ):
        witness = server.client(decode_responses=True)
        wait_for(
            lambda: (
                witness.exists("distributed_leader_lock")
                and witness.pubsub_numsub(channel)[0][1] > 0
            ),
            DEADLINE_S,
            "a leader",
        )
        yield witness


async def _module(fill: Fill) -> tuple[float, float, float]:
    lasting = {"message_ttl": HOUR_MS, "awaited_message_ttl": HOUR_MS}
    with ServerProcess(config=COMPACT) as server:
        witness = server.client(decode_responses=True)
        # No prefix, as by default: it would be a part of each key's name.
        async with sample_runtime(server.url, prefix="", conversations=lasting) as runtime:
            before, names = _used(witness), witness.dbsize()
            await fill(runtime)
            journal = witness.memory_usage(runtime.keyspace.name(keys.JOURNAL), samples=0) or 0
            used = _used(witness) - before - journal
            names = witness.dbsize() - names
    return used / MESSAGES, journal / MESSAGES, names / MESSAGES


async def _each(one: Callable[[int], Awaitable[object]]) -> None:
    for start in range(0, MESSAGES, AT_ONCE):
        numbers = range(start, min(MESSAGES, start + AT_ONCE))
        await asyncio.gather(*(one(number) for number in numbers))


async def _intake(runtime: Runtime) -> None:
    store = DispatchStore(runtime)
    await _each(lambda _: store.enqueue(TEXT, None))


async def _routing(runtime: Runtime) -> None:
    store = RoutingStore(runtime, RoutingRules())
    await store.touch("one")
    await _each(lambda n: store.process_payload_recip_key(f"did:key:z6Mk{n % KEYS:040}", TEXT))


async def _conversations(runtime: Runtime, each: int = 1) -> None:
    """Replies that wait; the first of each conversation opens its request."""
    store = ConversationStore(runtime)

    async def one(number: int) -> None:
        group = number // each
        info = MinMessageInfo(f"request-{group}", "", f"conversation-{group}")
        await store.create_request(info, "bench", 1, "")
        reply = NewReply(
            info.conversation_id, info.request_id, f"reply-{number}", 1, TEXT, hold="near"
        )
        await store.accept_reply(reply)

    await _each(one)


async def _pickup(runtime: Runtime) -> None:
    store = PickupStore(runtime)

    async def one(number: int) -> None:
        await store.add(f"connection-{number % KEYS}", uuid.uuid4().hex, "did:key:x", TEXT)

    await _each(one)


async def _transactions(runtime: Runtime) -> None:
    await PipelineStore(runtime).put(pipeline_of({"name": "one", "steps": [{"type": "job"}]}))
    store = TransactionStore(runtime)
    await _each(lambda _: store.start(TransactionStart("one", TEXT)))


MODULES: dict[str, Fill] = {
    "dispatch, durable intake": _intake,
    f"routing, {KEYS:,} keys": _routing,
    "conversations, reply that waits alone": _conversations,
    "conversations, ten replies that wait": partial(_conversations, each=10),
    f"pickup, {KEYS:,} recipients": _pickup,
    "transactions, one step to do": _transactions,
}
