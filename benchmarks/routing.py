"""Relay to inbox, deliverer to receiver, and what a message costs with many keys.

Ours against a relay and a deliverer that work step by step as the published ones do
(`routing_peer.py`). One process each, 16 connections that wait for their answers, one Redis.
Ours is measured until the inbox has handled the last message, the peer only until it has queued
it. Rounds alternate; those from which CPU time was stolen are repeated.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import uvloop
from tests.kit.roles import RoleProcess
from tests.kit.sample import sample_runtime
from tests.kit.server import ServerProcess

from angarium.routing import keys
from angarium.routing.finished_keys import FinishedKey
from angarium.routing.items import encode_outbound, id_of, new_outbound
from angarium.routing.store import RoutingRules, RoutingStore
from angarium.routing.transitions import TakenInbound
from benchmarks import measure
from benchmarks.measure import Round, table
from benchmarks.routing_load import Counter, envelope, open_sink, post_all, request
from benchmarks.sizes import count, rounds, sizes

CONNECTIONS = 16
KEYS = 1_000
POSTS = count(6_000, least=100)
PEER_POSTS = count(2_000, least=100)
DELIVERIES = count(3_000, least=100)
PEER_DELIVERIES = count(500, least=100)
ROUNDS = rounds(9)
SIZES = sizes(1_000, 1, 100_000, 1_000_000)  # the first is what the others are compared with
BATCH = 250
SIZE_MESSAGES = count(10_000, least=BATCH)
AGED_BY = count(200_000, least=500)

SCRIPTS = frozenset({"evalsha", "eval"})
SINGLE = frozenset({"hexists", "hget", "hincrby", "rpush", "blpop"})

Run = Callable[[int], Awaitable[None]]


def main() -> None:
    uvloop.run(_main())


async def _main() -> None:
    await _relays()
    await _deliverers()
    await _sizes()


@dataclass(frozen=True)
class Contender:
    """What to run, how much of it, and whom to ask for which commands meanwhile."""

    run: Run
    items: int
    witness: Any
    commands: frozenset[str]


async def _alternate(contenders: dict[str, Contender]) -> None:
    results: dict[str, list[Round]] = {name: [] for name in contenders}
    for each in contenders.values():
        await each.run(max(100, each.items // 10))
    for _ in range(ROUNDS):
        for name, each in contenders.items():
            results[name].append(await _round(each))
    base = [each.rate for each in next(iter(results.values()))]
    print(table([measure._row(name, found, base) for name, found in results.items()], "messages"))


async def _round(each: Contender) -> Round:
    for _ in range(measure.ATTEMPTS_MAX):
        before, stolen = _figures(each), measure.cpu_times()
        began = time.perf_counter()
        await each.run(each.items)
        seconds = time.perf_counter() - began
        after, steal = _figures(each), measure.steal_since(stolen)
        if steal <= measure.STEAL_MAX:
            break
    return Round(
        each.items / seconds,
        (after[0] - before[0]) / each.items,
        (after[1] - before[1]) * 1e6 / each.items,
        steal,
    )


def _figures(each: Contender) -> tuple[int, float]:
    """Calls of the commands that its clients use, and CPU seconds of its server."""
    stats = each.witness.info("commandstats")
    calls = sum(int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in each.commands)
    cpu = each.witness.info("cpu")
    return calls, float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])


async def _relays() -> None:
    print(f"\n## POST to handler, {CONNECTIONS} connections, {KEYS:,} keys\n")
    requests = [request(envelope(f"did:key:z6Mk{number:040}")) for number in range(KEYS)]
    with ServerProcess() as server, ServerProcess() as other:
        async with sample_runtime(server.url) as runtime:
            env = {
                "ANGARIUM_REDIS_URL": server.url,
                "ANGARIUM_PREFIX": runtime.settings.prefix,
                "ANGARIUM_ROUTING__INBOUND": '[["http","127.0.0.1","0"]]',
            }
            app = ["--app", "benchmarks.routing_load:app"]
            async with (
                RoleProcess(["serve", "relay"], env) as relay,
                RoleProcess(["serve", "inbox", *app], env),
                RoleProcess(["-m", "benchmarks.routing_peer", "relay", other.url]) as peer,
            ):
                store = RoutingStore(runtime, RoutingRules())

                def spread(items: int) -> list[bytes]:
                    return list(itertools.islice(itertools.cycle(requests), items))

                async def ours(items: int) -> None:
                    await post_all(relay.ports["http"], spread(items), CONNECTIONS)
                    while (await store.instances())[0][0].has_mail:
                        await asyncio.sleep(0.002)

                async def theirs(items: int) -> None:
                    await post_all(peer.ports["http"], spread(items), CONNECTIONS)

                await _alternate(
                    {
                        "five round trips, queued only": Contender(
                            theirs, PEER_POSTS, other.client(decode_responses=True), SINGLE
                        ),
                        "Angarium, handled": Contender(
                            ours, POSTS, server.client(decode_responses=True), SCRIPTS
                        ),
                    }
                )


async def _deliverers() -> None:
    print("\n## Deliveries to a local sink over HTTP\n")
    counter = Counter()
    sink, port = await open_sink(counter)
    with ServerProcess() as server, ServerProcess() as other:
        async with sample_runtime(server.url) as runtime:
            env = {
                "ANGARIUM_REDIS_URL": server.url,
                "ANGARIUM_PREFIX": runtime.settings.prefix,
                "ANGARIUM_ALLOW_PRIVATE_ADDRESSES": "true",
            }
            async with (
                RoleProcess(["serve", "deliverer"], env),
                RoleProcess(["-m", "benchmarks.routing_peer", "deliverer", other.url]),
            ):
                url = f"http://127.0.0.1:{port}/inbox"
                headers = {"Content-Type": "application/ssi-agent-wire"}
                item = encode_outbound(new_outbound(url, envelope("kid"), headers))
                ours_, theirs_ = server.client(), other.client()
                name = runtime.keyspace.name(keys.OUTBOUND)
                wake = runtime.keyspace.global_name(keys.OUTBOUND_WAKE)

                def fill(client: Any, queue: str) -> Callable[[int], Awaitable[None]]:
                    async def run(items: int) -> None:
                        async def start() -> None:
                            client.rpush(queue, *([item] * items))
                            client.publish(wake, 0)

                        await counter.more(items, start)

                    return run

                await _alternate(
                    {
                        "one at a time": Contender(
                            fill(theirs_, "acapy_outbound"),
                            PEER_DELIVERIES,
                            other.client(decode_responses=True),
                            SINGLE,
                        ),
                        "Angarium": Contender(
                            fill(ours_, name),
                            DELIVERIES,
                            server.client(decode_responses=True),
                            SCRIPTS,
                        ),
                    }
                )
    sink.close()


async def _sizes() -> None:
    """All sizes stand side by side, and rounds go from one to the next: noise hits all alike."""
    print("\n## Cost of a message against the number of keys: queued, taken and finished\n")
    async with AsyncExitStack() as stack:
        contenders, memory = {}, {}
        for size in SIZES:
            server = stack.enter_context(ServerProcess())
            witness = server.client(decode_responses=True)
            runtime = await stack.enter_async_context(sample_runtime(server.url))
            store = RoutingStore(runtime, RoutingRules())
            await store.touch("one")
            # A server's scripts cost half as much while it is young, whatever it holds.
            await _assign(store, AGED_BY)
            witness.flushall()
            await store.touch("one")
            empty = witness.info("memory")["used_memory"]
            await _assign(store, size)
            memory[size] = (witness.info("memory")["used_memory"] - empty) / size
            run = _through(store, size, size)
            contenders[f"{size:,} keys"] = Contender(run, SIZE_MESSAGES, witness, SCRIPTS)
            if size > SIZES[0]:
                # As many that stand there, and as few that get mail as in the first: what more
                # keys cost by themselves, apart from memory that no cache of the CPU holds.
                run = _through(store, size, SIZES[0])
                name = f"{size:,} keys, mail for {SIZES[0]:,} of them"
                contenders[name] = Contender(run, SIZE_MESSAGES, witness, SCRIPTS)
        await _alternate(contenders)
    print(f"\nMemory per key at {SIZES[-1]:,} keys: {memory[SIZES[-1]]:,.0f} bytes.")


def _name(number: int) -> str:
    return f"did:key:z6Mk{number:040}"


async def _assign(store: RoutingStore, size: int) -> None:
    for start in range(0, size, 500):
        batch = [_name(number) for number in range(start, min(size, start + 500))]
        await store.assign_recip_key_to_new_uid(batch)


def _through(store: RoutingStore, size: int, used: int) -> Run:
    """Messages spread over the keys used, by strides: no two near ones share a cache line."""
    stride, apart = max(1, int(used * 0.618)) | 1, size // used
    payload = envelope("kid")
    numbers = itertools.count()

    async def run(items: int) -> None:
        for _ in range(0, items, BATCH):
            batch = [_name(next(numbers) * stride % used * apart) for _ in range(BATCH)]
            await asyncio.gather(*(store.process_payload_recip_key(k, payload) for k in batch))
            while (claim := await store.claim("one", 0, BATCH)) and claim.fresh:
                taken = await store.take("one", 0, claim.fresh, BATCH)
                done = [
                    FinishedKey(key, [(id_of(item), "") for item in found.messages])
                    for key, found in zip(claim.fresh, taken, strict=True)
                    if isinstance(found, TakenInbound)
                ]
                await store.finish("one", 0, done)

    return run


if __name__ == "__main__":
    main()
