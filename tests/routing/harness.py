"""Helpers of the routing tests: a store on a test server, envelopes, counts and journal events."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from angarium.routing import keys
from angarium.routing.dead_letters import DeadRoutedMessage, RoutingDeadLetters
from angarium.routing.finished_keys import FinishedKey
from angarium.routing.items import id_of
from angarium.routing.outbound_store import OutboundStore
from angarium.routing.store import RoutingRules, RoutingStore
from angarium.routing.transitions import TakenInbound, TriedMessage
from angarium.runtime.clock import Clock
from angarium.runtime.journal import Event, Journal, JournalEntry, decode_entry
from angarium.runtime.runtime import Runtime
from tests.kit.sample import sample_runtime

STALE_MS = 15_000


@asynccontextmanager
async def routing(
    redis_url: str,
    *,
    layout: str = "native",
    clock: Clock | None = None,
    moves_max: int = 1_000,
    **overrides: Any,
) -> AsyncIterator[tuple[Runtime, RoutingStore]]:
    async with sample_runtime(redis_url, clock=clock, **overrides) as runtime:
        rules = RoutingRules(layout, STALE_MS, moves_max)
        yield runtime, RoutingStore(runtime, rules)


def envelope(
    *kids: str, text: str = "hello", version: int = 1, return_route: str | None = None
) -> bytes:
    """A packed message as far as a relay can see into it."""
    recipients = [{"encrypted_key": "x", "header": {"kid": kid}} for kid in kids]
    header: dict[str, Any] = {"typ": "JWM/1.0", "alg": "Authcrypt"}
    outer: dict[str, Any] = {"iv": "x", "ciphertext": text, "tag": "x"}
    if return_route is not None:
        outer["~transport"] = {"return_route": return_route}
    if version == 1:
        header["recipients"] = recipients
    else:
        header = {"typ": "application/didcomm-encrypted+json", "alg": "ECDH-ES+A256KW"}
        outer["recipients"] = recipients
    packed = base64.urlsafe_b64encode(json.dumps(header).encode()).decode()
    outer["protected"] = packed if version == 1 else packed.rstrip("=")
    return json.dumps(outer).encode()


async def post(store: RoutingStore, key: str, *payloads: bytes) -> list[str]:
    return [
        str(await store.process_payload_recip_key(key, payload)) for payload in payloads or (b"x",)
    ]


async def owner(store: RoutingStore, key: str) -> str | None:
    return (await store.show(key)).uid


async def take(store: RoutingStore, uid: str, key: str, messages_max: int = 5) -> list[bytes]:
    partition = store.partition_of(key)
    (taken,) = await store.take(uid, partition, [key], messages_max)
    return messages_of(taken)


def messages_of(taken: TakenInbound | TriedMessage | str) -> list[bytes]:
    assert not isinstance(taken, str), taken
    return taken.messages if isinstance(taken, TakenInbound) else [taken.message]


async def handle_all(store: RoutingStore, uid: str, key: str) -> list[bytes]:
    """ClaimedKeys, take and finish what waits for one key; the items, in order."""
    partition = store.partition_of(key)
    claim = await store.claim(uid, partition, 100, again=True)
    assert claim is not None
    assert key in [*claim.again, *claim.fresh]
    items = await take(store, uid, key, 1_000)
    done = FinishedKey(key, [(id_of(item), "") for item in items])
    assert await store.finish(uid, partition, [done]) == ["finished"]
    return items


def dead_inbound(runtime: Runtime, store: RoutingStore) -> RoutingDeadLetters:
    return RoutingDeadLetters(runtime, store, OutboundStore(runtime, "native"), "inbound")


async def dead_outbound(runtime: Runtime, outbound: OutboundStore) -> list[DeadRoutedMessage]:
    store = RoutingStore(runtime, RoutingRules())
    return [*(await RoutingDeadLetters(runtime, store, outbound, "outbound").page()).letters]


async def counts(runtime: Runtime) -> dict[str, int]:
    """Every pending count that is not zero, over all partitions."""
    found: dict[str, int] = {}
    for partition in range(runtime.settings.partitions):
        name = runtime.keyspace.name(keys.PENDING_COUNTS, partition)
        reply = await runtime.redis.call("HGETALL", name, key=name)
        pairs = zip(reply[::2], reply[1::2], strict=True)
        found.update({field.decode(): int(count) for field, count in pairs if int(count)})
    return found


async def entries(runtime: Runtime) -> list[JournalEntry]:
    journal, found = Journal(runtime), list[JournalEntry]()
    for partition in range(runtime.settings.partitions):
        position = "0-0"
        while some := await journal.read(partition, position):
            position = some[-1][0].decode()
            found += [decode_entry(*each) for each in some]
    return found


async def events(runtime: Runtime, *names: str) -> list[Event]:
    found = [event for entry in await entries(runtime) for event in entry.events]
    return [event for event in found if not names or event.event in names]


async def subjects(runtime: Runtime, *names: str) -> Sequence[str]:
    return [event.subject for event in await events(runtime, *names)]
