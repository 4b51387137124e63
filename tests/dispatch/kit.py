"""The module's store on a server of the tests, and what a witness sees of it in Redis."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from angarium.dispatch.epochs import digest
from angarium.dispatch.identity import new_ids
from angarium.dispatch.store import DispatchStore, MessageBytes
from angarium.redis.connection import Argument
from angarium.runtime import keyspace as keys
from angarium.runtime.clock import Clock
from angarium.runtime.journal import Event, Journal, decode_entry
from angarium.runtime.lease import Lease
from angarium.runtime.runtime import Runtime
from tests.kit.clock import FakeClock
from tests.kit.sample import sample_runtime

ACK_TIMEOUT_MS = 2_000
LEASE_MS = 3_600_000


@dataclass
class Held:
    """Everything that one partition holds, read in one go."""

    pending: dict[bytes, int] = field(default_factory=dict)
    payloads: dict[bytes, bytes] = field(default_factory=dict)
    attempts: dict[bytes, bytes] = field(default_factory=dict)
    results: list[dict[bytes, bytes]] = field(default_factory=list)
    dead: list[dict[bytes, bytes]] = field(default_factory=list)
    inbox: list[dict[bytes, bytes]] = field(default_factory=list)


class Harness:
    """A store, one partition of it, and a leader with a term."""

    def __init__(self, runtime: Runtime, store: DispatchStore, partition: int, term: int) -> None:
        self.runtime = runtime
        self.store = store
        self.partition = partition
        self.term = term
        self.epoch = 1

    def name(self, key: keys.Key) -> str:
        return self.runtime.keyspace.name(key, self.partition)

    def messages(self, *payloads: bytes) -> list[MessageBytes]:
        ids = new_ids(len(payloads), self.partition, self.store.partitions)
        return list(zip(ids, payloads, strict=True))

    async def accept(
        self, messages: Sequence[MessageBytes], *, term: int | None = None, sent: int | None = None
    ) -> int | None:
        return await self.store.accept(
            self.partition,
            self.term if term is None else term,
            self.epoch,
            messages,
            b"".join(digest(payload) for _, payload in messages),
            len(messages) if sent is None else sent,
        )

    async def accepted(self, *payloads: bytes, sent: int | None = None) -> list[bytes]:
        """Fresh messages that are pending now; their ids."""
        messages = self.messages(*payloads)
        assert await self.accept(messages, sent=sent) == len(messages)
        return [message_id for message_id, _ in messages]

    async def claim(self, count: int = 100, *, term: int | None = None) -> list[tuple[bytes, int]]:
        """Id and number of the delivery of each that was due."""
        claim = await self.store.claim(self.partition, self.term if term is None else term, count)
        assert claim is not None
        return [(each.message_id, each.delivery) for each in claim.messages]

    async def complete(self, *ids: bytes, consumer: str = "w1") -> list[bool]:
        results: list[tuple[bytes, list[Argument]]] = [(each, ["n", 1]) for each in ids]
        return await self.store.complete(self.partition, consumer, results)

    async def reject(self, message_id: bytes, reason: str, delay_ms: int = 100) -> str:
        (status,) = await self.store.reject(self.partition, [(message_id, reason, delay_ms)])
        return status

    async def acknowledge(self, *ids: bytes, consumer: str = "w1") -> list[bool]:
        return await self.store.acknowledge(self.partition, [(each, consumer) for each in ids])

    async def take_over(self) -> int:
        """Another leader comes; its term."""
        return await take_term(self.runtime, self.store, self.partition)

    async def add_to_inbox(self, *fields: Argument) -> None:
        """A plain XADD, by anybody."""
        name = self.name(keys.MESSAGES_INBOX)
        await self.runtime.redis.call("XADD", name, "*", *fields, key=name)

    async def take_inbox(self, count: int = 10, sent: int = 10) -> list[MessageBytes]:
        taken = await self.store.take_inbox(self.partition, self.term, count, sent)
        assert taken is not None
        return taken

    async def held(self) -> Held:
        names = [
            self.name(key)
            for key in (
                keys.MESSAGES_PENDING, keys.MESSAGES_PAYLOADS, keys.MESSAGES_ATTEMPTS,
                keys.MESSAGES_PROCESSED, keys.MESSAGES_DEAD, keys.MESSAGES_INBOX,
            )
        ]  # fmt: skip
        pending, payloads, attempts, results, dead, inbox = await self.runtime.redis.execute(
            [
                ("ZRANGE", names[0], 0, -1, "WITHSCORES"),
                ("HGETALL", names[1]),
                ("HGETALL", names[2]),
                *[("XRANGE", name, "-", "+") for name in names[3:]],
            ],
            key=names[0],
            repeatable=True,
        )
        scores = {member: int(score) for member, score in paired(pending).items()}
        streams = [[paired(fields) for _, fields in each] for each in (results, dead, inbox)]
        return Held(scores, paired(payloads), paired(attempts), *streams)

    async def events(self) -> list[Event]:
        """Those of this module, in order; the lease's own are another's."""
        found: list[Event] = []
        position = "0-0"
        while entries := await Journal(self.runtime).read(self.partition, position):
            position = entries[-1][0].decode()
            for entry_id, fields in entries:
                entry = decode_entry(entry_id, fields)
                found += entry.events if entry.module == "dispatch" else []
        return found

    async def noted(self, message_id: bytes) -> list[str]:
        """What the journal tells of one message."""
        return [each.event for each in await self.events() if each.subject == message_id.decode()]

    async def noted_all(self) -> Counter[str]:
        return Counter(each.event for each in await self.events())

    async def reasons(self) -> list[Sequence[str]]:
        return [each.reasons for each in await self.store.dead_letters(self.partition, 100)]


def paired(flat: Sequence[Any]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


async def take_term(runtime: Runtime, store: DispatchStore, partition: int) -> int:
    keys_of_lease = store.lease_keys(partition)
    await runtime.redis.call("DEL", keys_of_lease.lock, key=keys_of_lease.lock)
    lease = Lease(runtime, keys_of_lease, LEASE_MS)
    assert await lease.acquire()
    return lease.term


@asynccontextmanager
async def module(
    redis_url: str, *, clock: Clock | None = None, **overrides: Any
) -> AsyncIterator[Harness]:
    """On a cluster it is the last partition: what works there by accident works nowhere else."""
    async with sample_runtime(redis_url, clock=clock or FakeClock(), **overrides) as runtime:
        store = DispatchStore(runtime)
        partition = store.partitions - 1
        yield Harness(runtime, store, partition, await take_term(runtime, store, partition))
