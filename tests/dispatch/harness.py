"""Harnesses of dispatch: the store alone, and dispatchers and workers as services of this process.

Both use a real Redis; the services use real sockets. Each service has a runtime of its own, as it
would have in a process of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from angarium.dispatch import dispatcher, keys, worker
from angarium.dispatch.dispatcher import Dispatcher
from angarium.dispatch.epochs import digest
from angarium.dispatch.frames import DispatchedMessage
from angarium.dispatch.message_ids import new_ids
from angarium.dispatch.settings import DispatchSettings
from angarium.dispatch.store import DispatchStore
from angarium.dispatch.transitions import (
    ACKNOWLEDGE,
    COMPLETE,
    REJECT,
    AckItem,
    CompleteArgs,
    HeldItem,
    RejectArgs,
    RejectItem,
    ResultItem,
)
from angarium.dispatch.worker import Worker
from angarium.redis.connection import Argument
from angarium.runtime.application import Application
from angarium.runtime.clock import Clock
from angarium.runtime.journal import Event, Journal, decode_entry
from angarium.runtime.keyspace import Key
from angarium.runtime.lease import Lease
from angarium.runtime.runtime import Runtime
from angarium.settings import Settings
from tests.kit.clock import FakeClock
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime, sample_settings

ACK_TIMEOUT_MS = 2_000
LEASE_MS = 3_600_000


@dataclass
class StoredState:
    """All keys of one partition, read in one round trip."""

    pending: dict[bytes, int] = field(default_factory=dict)
    payloads: dict[bytes, bytes] = field(default_factory=dict)
    attempts: dict[bytes, bytes] = field(default_factory=dict)
    results: list[dict[bytes, bytes]] = field(default_factory=list)
    dead: list[dict[bytes, bytes]] = field(default_factory=list)
    inbox: list[dict[bytes, bytes]] = field(default_factory=list)


class StoreHarness:
    """The store, one partition, and a leader's term for it."""

    def __init__(self, runtime: Runtime, store: DispatchStore, partition: int, term: int) -> None:
        self.runtime = runtime
        self.store = store
        self.partition = partition
        self.term = term
        self.epoch = 1

    def name(self, key: Key) -> str:
        return self.runtime.keyspace.name(key, self.partition)

    def messages(self, *payloads: bytes) -> list[DispatchedMessage]:
        ids = new_ids(len(payloads), self.partition, self.store.partitions)
        return list(zip(ids, payloads, strict=True))

    async def accept(
        self,
        messages: Sequence[DispatchedMessage],
        *,
        term: int | None = None,
        sent: int | None = None,
    ) -> int | None:
        accepted = await self.store.accept(
            self.partition,
            self.term if term is None else term,
            self.epoch,
            messages,
            b"".join(digest(payload) for _, payload in messages),
            len(messages) if sent is None else sent,
        )
        return None if accepted is None else accepted.accepted

    async def accepted(self, *payloads: bytes, sent: int | None = None) -> list[bytes]:
        """Accept new messages; their ids."""
        messages = self.messages(*payloads)
        assert await self.accept(messages, sent=sent) == len(messages)
        return [message_id for message_id, _ in messages]

    async def claim(self, count: int = 100, *, term: int | None = None) -> list[tuple[bytes, int]]:
        """Id and delivery number of each due message."""
        claim = await self.store.claim(self.partition, self.term if term is None else term, count)
        assert claim is not None
        return [(each.message_id, each.delivery) for each in claim.messages]

    async def complete(self, *ids: bytes, consumer: str = "w1") -> list[bool]:
        return await self.complete_all(consumer, [(each, ["n", 1]) for each in ids])

    async def complete_all(
        self, consumer: str, results: Sequence[tuple[bytes, Sequence[Argument]]]
    ) -> list[bool]:
        """Complete all messages in one call of the script."""
        args = CompleteArgs(consumer, self.settings.stream_entries_max or 0)
        items = [ResultItem(id, [_as_bytes(each) for each in fields]) for id, fields in results]
        replies = await self.runtime.call(COMPLETE, self.partition, args, items)
        return [reply == "completed" for reply in replies]

    async def reject(
        self, message_id: bytes, reason: str, delay_ms: int = 100, **given: Any
    ) -> str:
        (status,) = await self.reject_all([(message_id, reason)], delay_ms, **given)
        return status

    async def reject_all(
        self,
        rejections: Sequence[tuple[bytes, str]],
        delay_ms: int = 100,
        *,
        consumer: str = "w1",
        delivery: int = 0,
        last: bool = False,
        draw: float = 1.0,
        tries_max: int | None = None,
        backoff: str = "exponential",
        delay_ms_max: int = ACK_TIMEOUT_MS,
    ) -> list[str]:
        tries_max = self.settings.deliveries_max if tries_max is None else tries_max
        args = RejectArgs(ACK_TIMEOUT_MS, tries_max, backoff, delay_ms, delay_ms_max)
        items = [
            RejectItem(message_id, consumer, delivery, reason, last, draw)
            for message_id, reason in rejections
        ]
        replies: list[str] = await self.runtime.call(REJECT, self.partition, args, items)
        return replies

    async def renew(self, *ids: bytes, consumer: str = "w1", delivery: int = 0) -> list[str]:
        items = [HeldItem(each, consumer, delivery) for each in ids]
        return await self.store.renew(self.partition, items)

    async def acknowledge(self, *ids: bytes, consumer: str = "w1") -> list[bool]:
        items = [AckItem(each, consumer) for each in ids]
        replies = await self.runtime.call(ACKNOWLEDGE, self.partition, None, items)
        return [reply == "acknowledged" for reply in replies]

    @property
    def settings(self) -> DispatchSettings:
        return self.runtime.settings.group(DispatchSettings)

    async def take_over(self) -> int:
        """Acquire the lease for another leader; its term."""
        return await take_term(self.runtime, self.store, self.partition)

    async def add_to_inbox(self, *fields: Argument) -> None:
        """XADD as any client would do it."""
        name = self.name(keys.MESSAGES_INBOX)
        await self.runtime.redis.call("XADD", name, "*", *fields, key=name)

    async def accept_inbox(self, count: int = 10, sent: int = 10) -> list[DispatchedMessage]:
        accepted = await self.store.accept_inbox(self.partition, self.term, count, sent)
        assert accepted is not None
        return [(each.message_id, each.payload) for each in accepted.messages]

    async def state(self) -> StoredState:
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
        scores = {member: int(score) for member, score in as_dict(pending).items()}
        streams = [[as_dict(fields) for _, fields in each] for each in (results, dead, inbox)]
        return StoredState(scores, as_dict(payloads), as_dict(attempts), *streams)

    async def events(self) -> list[Event]:
        """Journal events of dispatch, in order."""
        found: list[Event] = []
        position = "0-0"
        while entries := await Journal(self.runtime).read(self.partition, position):
            position = entries[-1][0].decode()
            for entry_id, fields in entries:
                entry = decode_entry(entry_id, fields)
                found += entry.events if entry.module == "dispatch" else []
        return found

    async def events_of(self, message_id: bytes) -> list[str]:
        return [each.event for each in await self.events() if each.subject == message_id.decode()]

    async def event_counts(self) -> Counter[str]:
        return Counter(each.event for each in await self.events())

    async def reasons(self) -> list[Sequence[str]]:
        return [each.reasons for each in await self.store.dead_letters(self.partition, 100)]


def as_dict(flat: Sequence[Any]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


async def take_term(runtime: Runtime, store: DispatchStore, partition: int) -> int:
    keys_of_lease = store.lease_keys(partition)
    await runtime.redis.call("DEL", keys_of_lease.lock, key=keys_of_lease.lock)
    lease = Lease(runtime, keys_of_lease, LEASE_MS)
    assert await lease.acquire()
    return lease.term


@asynccontextmanager
async def store_harness(
    redis_url: str, *, clock: Clock | None = None, **overrides: Any
) -> AsyncIterator[StoreHarness]:
    """Uses the last partition: a cluster stores it on another node than partition 0."""
    async with sample_runtime(redis_url, clock=clock or FakeClock(), **overrides) as runtime:
        store = DispatchStore(runtime)
        partition = store.partitions - 1
        yield StoreHarness(runtime, store, partition, await take_term(runtime, store, partition))


Handle = Callable[[Any], Any]


async def echo(message: dict[str, Any]) -> dict[str, Any]:
    return message


class DispatchServices:
    def __init__(self, settings: Settings, runtime: Runtime, stack: AsyncExitStack) -> None:
        self.settings = settings
        self.runtime = runtime
        self.store = DispatchStore(runtime)
        self._stack = stack

    async def add_dispatcher(self, **dispatch: Any) -> Dispatcher:
        settings = self._with(**dispatch)
        app = Application()
        dispatcher.check(settings, app)
        runtime = await self._stack.enter_async_context(Runtime.open(settings))
        service = dispatcher.build(runtime, app)
        assert isinstance(service, Dispatcher)
        await self._run(service)
        return service

    async def add_worker(
        self,
        handle: Handle = echo,
        *,
        options: dict[str, Any] | None = None,
        **dispatch: Any,
    ) -> Worker:
        settings = self._with(**dispatch)
        app = Application()
        app.worker(**(options or {}))(handle)
        worker.check(settings, app)
        runtime = await self._stack.enter_async_context(Runtime.open(settings))
        service = worker.build(runtime, app)
        assert isinstance(service, Worker)
        await self._run(service)
        return service

    async def publish(self, *payloads: bytes) -> None:
        for payload in payloads:
            await self.store.publish(payload)

    def stream_name(self, partition: int) -> str:
        return self.runtime.keyspace.name(keys.MESSAGES_PROCESSED, partition)

    async def results(self) -> list[dict[str, str]]:
        found = []
        for partition in range(self.store.partitions):
            name = self.stream_name(partition)
            for _, values in await self.runtime.redis.call("XRANGE", name, "-", "+", key=name):
                pairs = zip(values[::2], values[1::2], strict=True)
                found.append({key.decode(): value.decode() for key, value in pairs})
        return found

    async def wait_for_results(self, count: int) -> list[dict[str, str]]:
        """Wait until the stream has `count` results and nothing is pending."""

        async def done() -> bool:
            return len(await self.results()) >= count and await self.pending() == 0

        await eventually(done, deadline_s=60)
        return await self.results()

    async def pending(self) -> int:
        partitions = range(self.store.partitions)
        return sum([await self.store.pending_count(partition) for partition in partitions])

    async def dead(self) -> int:
        partitions = range(self.store.partitions)
        return sum([(await self.store.status(partition)).dead for partition in partitions])

    async def result_count(self) -> int:
        return len(await self.results())

    async def wait_until(self, condition: Callable[[], bool | Awaitable[bool]]) -> None:
        async def look() -> bool:
            answer = condition()
            return await answer if isinstance(answer, Awaitable) else answer

        await eventually(look, deadline_s=60)

    def _with(self, **dispatch: Any) -> Settings:
        group = self.settings.dispatch.model_copy(update=dispatch)
        return self.settings.model_copy(update={"dispatch": group})

    async def _run(self, service: Dispatcher | Worker) -> None:
        await service.start()
        self._stack.push_async_callback(service.stop, 5.0)


@asynccontextmanager
async def dispatch_services(
    redis_url: str,
    *,
    partitions: int | None = None,
    limits: dict[str, int] | None = None,
    **dispatch: Any,
) -> AsyncIterator[DispatchServices]:
    given = {"ack_port": 0, "lock_ms": 500, "ack_timeout_ms": 500, **dispatch}
    overrides: dict[str, Any] = {} if partitions is None else {"partitions": partitions}
    if limits is not None:
        overrides["limits"] = limits
    settings = sample_settings(redis_url, dispatch=given, **overrides)
    async with Runtime.open(settings) as runtime, AsyncExitStack() as stack:
        yield DispatchServices(settings, runtime, stack)


def _as_bytes(value: Argument) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
