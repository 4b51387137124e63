"""The module in Redis: every script of it called, every key of it named, and nothing decided.

Calls that come in numbers are gathered into batches; they return futures, so that a caller who
has thousands under way needs no task for each. What a script answers is turned into values here,
and into errors where it means one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from angarium.pickup.model import Message, message_of
from angarium.runtime import keyspace as keys
from angarium.runtime.lease import LeaseKeys
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script, status_of

ADD, FIND, PULL, TAKE, CLAIM, REMOVE, BURY, CLEAR, BEGIN, FINISH, CHART, COUNT, LIST, RAISE = (
    load_script("angarium.pickup", name)
    for name in (
        "add_messages", "find_messages", "pull_messages", "take_messages", "claim_archived",
        "remove_messages", "bury_messages", "clear_buried", "begin_move", "finish_move",
        "chart_queues", "count_messages", "list_messages", "raise_term",
    )
)  # fmt: skip
CLAIM_PUSHES, GRANT_PUSH, SETTLE = (
    load_script("angarium.pickup", name) for name in ("claim_pushes", "grant_push", "settle_push")
)
OPEN, CLOSE, READ, RENEW, FORGET, DUE, RELEASE, SHOW, RETURN = (
    load_script("angarium.pickup", name)
    for name in (
        "open_session", "close_session", "read_sessions", "renew_gateway", "forget_gateway",
        "list_due", "release_messages", "show_queue", "return_messages",
    )
)  # fmt: skip

QUEUE = (
    keys.PICKUP_QUEUE,
    keys.PICKUP_MESSAGES,
    keys.PICKUP_PENDING,
    keys.PICKUP_SENDING,
    keys.PICKUP_RECIPIENTS,
    keys.PICKUP_BURIED,
)
# One notification of a live session; what is left comes with the next.
PULL_MESSAGES_MAX = 100
PULL_BYTES_MAX = 256 * 1024
# Of one call for many sessions or takers: what Redis copies and we hold at once.
CALL_BYTES_MAX = 4 * 1024 * 1024
# The first message is given whatever its size; a larger one than this is in no queue.
ANY_BYTES = 2**52
# One step of the move to the database: one transaction there, and short enough here that the
# messages of others do not wait for it.
MOVE_MESSAGES_MAX = 250
MOVE_BYTES_MAX = 1024 * 1024
RELEASE_MESSAGES_MAX = 1_000
# What we guess that an answer of unknown size takes, to keep batches from growing too large.
ANSWER_BYTES_GUESS = 2_048

# Names of queues that are kept at hand: about 1 KB each.
QUEUES_REMEMBERED_MAX = 10_000

Futures = asyncio.Future[Any]


class TakeLimits(NamedTuple):
    """Of one take, or of one delivery. The first message may be as large as `first_bytes`."""

    messages: int
    bytes: int
    first_bytes: int = ANY_BYTES


@dataclass(frozen=True)
class Due:
    """What a partition's housekeeping has to look at."""

    gateways: Sequence[str]
    to_release: Sequence[str]
    aged: Sequence[str]
    buried: Sequence[str]


@dataclass(frozen=True)
class QueueFigures:
    """One queue as it is in Redis; `archived` is what the database holds of it."""

    pending: int
    sending: int
    archived: int
    bytes: int
    live: bool
    session: str | None
    gateway: str | None
    oldest_ms: int | None


@dataclass(frozen=True)
class GatewayFigures:
    gateway: str
    sessions: int
    live: bool


@dataclass(frozen=True)
class ModuleMetrics:
    """All partitions together."""

    gateways: list[GatewayFigures]
    queues: int
    moving: int
    pushes: int


class PickupStore:
    def __init__(self, runtime: Runtime, *, direct: bool = False) -> None:
        """`direct`: added messages may go to a session of ours at once (see add_messages.lua)."""
        self.runtime = runtime
        self.gateway = runtime.actor
        settings, limits = runtime.settings.pickup, runtime.settings.limits
        self._name = runtime.keyspace.name
        # Each message names its queue's keys three times.
        self._queue_keys = lru_cache(QUEUES_REMEMBERED_MAX)(self._name_queue)
        self._threshold_ms = settings.threshold_timestamp
        self._grace_ms = settings.grace_ms
        self._sending_ms = settings.sending_ms
        self._lease_ms = settings.lease_ms
        self._renewed_ms: dict[int, tuple[int, int]] = {}  # the last two times, by Redis' clock
        self.partition_of = runtime.keyspace.partition_of
        self.hints = runtime.keyspace.global_name(keys.PICKUP_HINTS, "")
        self.partitions = range(runtime.settings.partitions)
        shared = self._shared
        self._adds = runtime.batched(
            ADD,
            shared(
                keys.PICKUP_GATEWAYS,
                keys.PICKUP_AGES,
                keys.PICKUP_CHARTED,
                keys.PICKUP_PUSHES_DUE,
                keys.PICKUP_PUSHES,
            ),
            (
                limits.pickup_queue_messages_max,
                limits.pickup_queue_bytes_max,
                self.hints,
                limits.pickup_sending_messages_max if direct else 0,
            ),
        )
        charted = shared(keys.PICKUP_CHARTED)
        pull_limits = (
            PULL_MESSAGES_MAX, PULL_BYTES_MAX, limits.pickup_sending_messages_max,
            CALL_BYTES_MAX,
        )  # fmt: skip
        self._pulls = runtime.batched(PULL, charted, pull_limits)
        with_due = shared(keys.PICKUP_CHARTED, keys.PICKUP_DUE)
        self._takes = runtime.batched(TAKE, with_due, (self._sending_ms, CALL_BYTES_MAX))
        self._removes = runtime.batched(
            REMOVE,
            shared(keys.PICKUP_MOVING, keys.PICKUP_BURIALS, keys.PICKUP_CHARTED),
            (self.hints,),
        )
        self._counts = runtime.batched(COUNT, shared(keys.PICKUP_CHARTED, keys.PICKUP_MOVING))
        self._finds = runtime.batched(FIND, lambda _: ())
        live = shared(keys.PICKUP_GATEWAYS)
        self._reads = runtime.batched(READ, live)
        self._opens = runtime.batched(OPEN, self._open_keys, (self._grace_ms, self.hints))
        self._closes = runtime.batched(
            CLOSE, shared(keys.PICKUP_GATEWAYS, keys.PICKUP_DUE), (self._grace_ms, self.hints)
        )
        self._interval_ms = settings.push_interval_ms

    # Messages

    def add(
        self,
        queue: str,
        message_id: str,
        dids: str,
        payload: bytes,
        push: bytes = b"",
        *,
        at_once: bool = True,
    ) -> Futures:
        """b"here", b"elsewhere", b"offline", b"queue_full", or [b"sent", term, sequence, ms].

        `push` is a hashed token and a note divided by a space: it is scheduled when offline.
        Without `at_once` it waits to be pulled, because its session's client is slow.
        """
        args = (queue, message_id, dids, payload, push, 1 if at_once else 0)
        item = (self._queue_keys(queue), args)
        return self._adds.submit(self.partition_of(queue), item, queue, len(payload))

    async def found(self, queue: str, message_id: str) -> bool:
        item = (self._queue_keys(queue), (message_id,))
        reply = await self._finds.submit(self.partition_of(queue), item)
        return status_of(reply) == "found"

    def pull(self, queue: str, term: str, *, again: bool, seen: str = "") -> Futures:
        item = (self._queue_keys(queue), (queue, term, 1 if again else 0, seen))
        return self._pulls.submit(self.partition_of(queue), item, None, 0, ANSWER_BYTES_GUESS)

    def take(self, queue: str, did: str, limits: TakeLimits, seen: str = "") -> Futures:
        item = (self._queue_keys(queue), (queue, did, *limits, seen))
        guess = ANSWER_BYTES_GUESS * 8
        return self._takes.submit(self.partition_of(queue), item, queue, 0, guess)

    async def claim(
        self,
        queue: str,
        term: str,
        rows: Iterable[tuple[str, int, int]],
        limits: TakeLimits,
        cleared: bytes,
    ) -> Any:
        """Give archived messages (id, sequence, bytes) to a session, or to a taker."""
        fields = [field for row in rows for field in row]
        args = [queue, term, self._sending_ms, *limits, cleared, *fields]
        return await self._run(CLAIM, queue, (keys.PICKUP_DUE,), args)

    async def give_back(self, queue: str, due: Mapping[str, bytes]) -> int:
        """Messages that were taken and not answered; `due` is what the take said of each id."""
        fields = [field for pair in due.items() for field in pair]
        args = [queue, self.hints, *fields]
        return int((await self._run(RETURN, queue, (keys.PICKUP_GATEWAYS,), args))[1])

    def remove(self, queue: str, event: str, ids: Iterable[str]) -> Futures:
        listed = " ".join(ids)
        item = (self._queue_keys(queue), (queue, event, listed))
        return self._removes.submit(self.partition_of(queue), item, queue, len(listed))

    async def bury(
        self, queue: str, event: str, cleared: bytes, rows: Iterable[tuple[str, int]]
    ) -> Any:
        fields = [field for row in rows for field in row]
        args = [queue, event, cleared, self.hints, *fields]
        return await self._run(BURY, queue, (keys.PICKUP_BURIALS,), args)

    async def buried(self, queue: str, count_max: int) -> list[str]:
        name = self._name(keys.PICKUP_BURIED, self.partition_of(queue), queue)
        reply = await self.runtime.redis.call("SRANDMEMBER", name, count_max, key=name)
        return [each.decode() for each in reply]

    async def clear(self, queue: str, ids: Sequence[str]) -> None:
        await self._run(CLEAR, queue, (keys.PICKUP_BURIALS,), [queue, *ids])

    def count(self, queue: str, did: str) -> Futures:
        item = (self._queue_keys(queue), (queue, did))
        return self._counts.submit(self.partition_of(queue), item, queue)

    async def list_ids(self, queue: str, did: str, ids_max: int) -> Any:
        return await self._run(LIST, queue, (keys.PICKUP_CHARTED,), [did, ids_max])

    async def show(self, queue: str) -> QueueFigures | None:
        reply = await self._run(SHOW, queue, (keys.PICKUP_GATEWAYS,), [])
        pending, sending, _, oldest, live, *fields = reply
        if not fields:
            return None
        meta = {name.decode(): value for name, value in zip(fields[::2], fields[1::2], strict=True)}
        archived, held = int(meta.get("archived", 0)), int(meta.get("held", 0))
        return QueueFigures(
            pending=int(pending) + archived - held,
            sending=int(sending),
            archived=archived,
            bytes=int(meta.get("bytes", 0)),
            live=bool(live),
            session=_text(meta.get("session")),
            gateway=_text(meta.get("gateway")),
            oldest_ms=int(float(oldest)) // 1000 if oldest else None,
        )

    async def overview(self) -> ModuleMetrics:
        queues = moving = pushes = 0
        sessions: dict[str, int] = {}
        dead: set[str] = set()
        for partition in self.partitions:
            gateways, ages, on_their_way, due = (
                self._name(key, partition)
                for key in (
                    keys.PICKUP_GATEWAYS, keys.PICKUP_AGES, keys.PICKUP_MOVING,
                    keys.PICKUP_PUSHES_DUE,
                )
            )  # fmt: skip
            found = await self.runtime.redis.execute(
                [
                    ("ZRANGE", gateways, 0, -1),
                    ("ZCARD", ages),
                    ("HLEN", on_their_way),
                    ("ZCARD", due),
                ],
                key=gateways,
                repeatable=True,
            )
            queues, moving, pushes = queues + found[1], moving + found[2], pushes + found[3]
            dead |= set((await self.due(partition, 1_000)).gateways)
            for name in (each.decode() for each in found[0]):
                held = self._name(keys.PICKUP_GATEWAY_SESSIONS, partition, name)
                count = await self.runtime.redis.call("SCARD", held, key=held)
                sessions[name] = sessions.get(name, 0) + int(count)
        listed = [
            GatewayFigures(name, sessions[name], name not in dead) for name in sorted(sessions)
        ]
        return ModuleMetrics(listed, queues, moving, pushes)

    # Sessions

    def open_session(
        self, queue: str, session: str, socket: str, restored: str = "", *, asked_ms: int | str = ""
    ) -> Futures:
        item = (self._queue_keys(queue), (queue, session, socket, restored, asked_ms))
        return self._opens.submit(self.partition_of(queue), item, queue)

    def close_session(
        self,
        queue: str,
        *,
        gateway: str,
        socket: str = "",
        session: str = "",
        term: str = "",
        dead: bool = False,
    ) -> Futures:
        partition = self.partition_of(queue)
        sessions = self._name(keys.PICKUP_GATEWAY_SESSIONS, partition, gateway)
        args = (queue, gateway, socket, session, term, 1 if dead else "")
        return self._closes.submit(partition, ((*self._queue_keys(queue), sessions), args), queue)

    def read_session(self, queue: str) -> Futures:
        return self._reads.submit(self.partition_of(queue), (self._queue_keys(queue), ()), None)

    async def renew_gateway(self, partition: int, *, end: bool = False) -> str:
        names = [self._name(keys.PICKUP_GATEWAYS, partition)]
        args: list[Any] = [self.gateway, 0 if end else self._lease_ms]
        reply = await self.runtime.run(RENEW, partition, names, args, durable=False)
        if not end:
            before_ms = self._renewed_ms.get(partition, (0, int(reply[1])))[1]
            self._renewed_ms[partition] = (before_ms, int(reply[1]))
        return status_of(reply)

    def asked_ms(self, partition: int) -> int:
        """A moment before whatever a client asks for now, by Redis' clock: the renewal before the
        last. A process that was stopped may renew before it reads what has waited meanwhile."""
        return self._renewed_ms.get(partition, (0, 0))[0]

    async def sessions_of(self, partition: int, gateway: str, count_max: int) -> list[str]:
        name = self._name(keys.PICKUP_GATEWAY_SESSIONS, partition, gateway)
        reply = await self.runtime.redis.call("SRANDMEMBER", name, count_max, key=name)
        return [each.decode() for each in reply]

    async def forget_gateway(self, partition: int, gateway: str) -> str:
        names = [
            self._name(keys.PICKUP_GATEWAYS, partition),
            self._name(keys.PICKUP_GATEWAY_SESSIONS, partition, gateway),
        ]
        return status_of(await self.runtime.run(FORGET, partition, names, [gateway]))

    # Notifications

    async def claim_pushes(
        self, partition: int, claim_ms: int, count_max: int
    ) -> list[tuple[str, int, bytes]]:
        """Hashed token, tries before, note. They lie with the queues of their messages."""
        names = self._push_keys(partition)
        args = [claim_ms, count_max]
        reply = await self.runtime.run(CLAIM_PUSHES, partition, names, args, durable=False)
        return [
            (reply[at].decode(), int(reply[at + 1]), reply[at + 2])
            for at in range(0, len(reply), 3)
        ]

    async def grant_push(self, token: str) -> int:
        """0 if the token may get a notification now, else the milliseconds until then."""
        partition = self.partition_of(token)
        names = [self._name(keys.PICKUP_PUSHED, partition)]
        args: list[Any] = [token, self._interval_ms]
        reply = await self.runtime.run(GRANT_PUSH, partition, names, args, durable=False)
        return 0 if status_of(reply) == "granted" else max(1, int(reply[1]))

    async def settle_push(
        self,
        partition: int,
        token: str,
        push: bytes,
        message_id: str,
        outcome: str,
        retry_ms: int | None = None,
        tries: int = 0,
    ) -> str:
        delay_ms = self._interval_ms if retry_ms is None else retry_ms
        args: list[Any] = [token, push, message_id, outcome, delay_ms, tries]
        names = self._push_keys(partition)
        return status_of(await self.runtime.run(SETTLE, partition, names, args))

    # Housekeeping

    async def due(self, partition: int, count_max: int) -> Due:
        names = self._shared(
            keys.PICKUP_GATEWAYS, keys.PICKUP_DUE, keys.PICKUP_AGES, keys.PICKUP_BURIALS
        )(partition)
        reply = await self.runtime.run(DUE, partition, names, [self._threshold_ms, count_max])
        return Due(*([each.decode() for each in part] for part in reply))

    async def release(self, partition: int, queues: Sequence[str]) -> int:
        names = [
            self._name(keys.PICKUP_GATEWAYS, partition),
            self._name(keys.PICKUP_DUE, partition),
            *self._all_keys(queues),
        ]
        args: list[Any] = [RELEASE_MESSAGES_MAX, self.hints, len(queues), *queues]
        reply = await self.runtime.run(RELEASE, partition, names, args)
        return sum(int(each[1]) for each in reply)

    async def begin_move(
        self, partition: int, queues: Sequence[str]
    ) -> Mapping[str, list[Message]]:
        """Messages to store in the database, by queue."""
        names = [self._name(keys.PICKUP_MOVING, partition), *self._all_keys(queues)]
        args: list[Any] = [
            self._threshold_ms,
            MOVE_MESSAGES_MAX,
            MOVE_BYTES_MAX,
            len(queues),
            *queues,
        ]
        reply = await self.runtime.run(BEGIN, partition, names, args)
        return {
            queue: messages_of(found) for queue, found in zip(queues, reply, strict=True) if found
        }

    async def finish_move(self, partition: int, moved: Mapping[str, Sequence[str]]) -> int | None:
        """How many left Redis; None when the chart has to be made first."""
        names = [
            *self._shared(keys.PICKUP_MOVING, keys.PICKUP_AGES, keys.PICKUP_CHARTED)(partition),
            *self._all_keys(list(moved)),
        ]
        args: list[Any] = [self._threshold_ms, len(moved)]
        for queue, ids in moved.items():
            args += [queue, " ".join(ids)]
        reply = await self.runtime.run(FINISH, partition, names, args)
        if any(status_of(each) == "uncharted" for each in reply):
            return None
        return sum(int(each[1]) for each in reply)

    async def charted(self, partition: int) -> bool:
        name = self._name(keys.PICKUP_CHARTED, partition)
        return bool(await self.runtime.redis.call("EXISTS", name, key=name))

    async def chart(
        self, partition: int, figures: Sequence[tuple[str, int, int]], *, last: bool
    ) -> None:
        """Write down the archived messages and bytes of queues."""
        names = [
            self._name(keys.PICKUP_CHARTED, partition),
            *self._all_keys([queue for queue, _, _ in figures]),
        ]
        args: list[Any] = [1 if last else 0, len(figures)]
        for _, count, size in figures:
            args += [count, size]
        await self.runtime.run(CHART, partition, names, args)

    def persister_lease(self, partition: int) -> LeaseKeys:
        return LeaseKeys(
            partition,
            self._name(keys.PICKUP_PERSISTER_LOCK, partition),
            self._name(keys.PICKUP_PERSISTER_TERM, partition),
        )

    async def raise_term(self, partition: int, term: int) -> None:
        names = [self._name(keys.PICKUP_PERSISTER_TERM, partition)]
        await self.runtime.run(RAISE, partition, names, [term])

    # Names

    def _name_queue(self, queue: str) -> tuple[str, ...]:
        partition, name = self.partition_of(queue), self._name
        return tuple([name(key, partition, queue) for key in QUEUE])

    def _all_keys(self, queues: Iterable[str]) -> list[str]:
        return [name for queue in queues for name in self._queue_keys(queue)]

    def _shared(self, *shared: keys.Key) -> Any:
        return lambda partition: [self._name(key, partition) for key in shared]

    def _open_keys(self, partition: int) -> list[str]:
        names: list[str] = self._shared(keys.PICKUP_GATEWAYS, keys.PICKUP_DUE)(partition)
        return [*names, self._name(keys.PICKUP_GATEWAY_SESSIONS, partition, self.gateway)]

    def _push_keys(self, partition: int) -> list[str]:
        names: list[str] = self._shared(keys.PICKUP_PUSHES_DUE, keys.PICKUP_PUSHES)(partition)
        return names

    async def _run(
        self, script: Any, queue: str, shared: Sequence[keys.Key], args: Sequence[Any]
    ) -> Any:
        partition = self.partition_of(queue)
        names = [*self._shared(*shared)(partition), *self._queue_keys(queue)]
        return await self.runtime.run(script, partition, names, args)


def messages_of(fields: Sequence[bytes]) -> list[Message]:
    """Pairs of id and record, as scripts answer them."""
    return [
        message_of(fields[position], fields[position + 1]) for position in range(0, len(fields), 2)
    ]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
