"""Recipient keys, instances and inbound messages in Redis: every transition of them by name.

The only file, with `outbound_store.py`, that calls scripts and knows key names. It decides
nothing: what a script answered comes back as a value or as an error. One store serves both
layouts; which one is an argument of the scripts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from angarium.redis.connection import Argument
from angarium.redis.subscription import Subscription
from angarium.routing.errors import InstancesFull, RecipientUnknown
from angarium.routing.items import DirectResponse, encode_inbound, encode_response, id_of
from angarium.runtime import keyspace as keys
from angarium.runtime.ids import time_ordered_id
from angarium.runtime.limits import Limits
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script, status_of

_PACKAGE = "angarium.routing"
PROCESS_PAYLOAD_RECIP_KEY = load_script(_PACKAGE, "process_payload_recip_key")
PROCESS_PAYLOAD_RECIP_KEY_ACAPY = load_script(_PACKAGE, "process_payload_recip_key_acapy")
GET_NEW_VALID_UID = load_script(_PACKAGE, "get_new_valid_uid")
ASSIGN_RECIP_KEY_TO_NEW_UID = load_script(_PACKAGE, "assign_recip_key_to_new_uid")
REASSIGN_RECIP_KEY_TO_UID = load_script(_PACKAGE, "reassign_recip_key_to_uid")
TOUCH_UID = load_script(_PACKAGE, "touch_uid")
RETIRE_UID = load_script(_PACKAGE, "retire_uid")
SWEEP_UIDS = load_script(_PACKAGE, "sweep_uids")
CLAIM_KEYS = load_script(_PACKAGE, "claim_keys")
CLAIM_KEYS_ACAPY = load_script(_PACKAGE, "claim_keys_acapy")
TAKE_MESSAGES = load_script(_PACKAGE, "take_messages")
FINISH_MESSAGES = load_script(_PACKAGE, "finish_messages")
POST_RESPONSES = load_script(_PACKAGE, "post_responses")
TAKE_RESPONSES = load_script(_PACKAGE, "take_responses")
LIST_UIDS = load_script(_PACKAGE, "list_uids")
SHOW_KEYS = load_script(_PACKAGE, "show_keys")
REVIVE_INBOUND = load_script(_PACKAGE, "revive_inbound")
REBALANCE_KEYS = load_script(_PACKAGE, "rebalance_keys")

ACAPY = "acapy"
# Keys of a stale instance that one call moves: about ten milliseconds of Redis.
MOVES_MAX = 1_000
# An answer that no relay fetched by then has no caller left: they wait for 15 s.
RESPONSE_EXPIRES_MS = 60_000
# Looked at in one go; in the list that all relays share, older ones of others are given up.
RESPONSES_MAX = 1_000
MAPS = (
    keys.PENDING_COUNTS,
    keys.ROUND_ROBIN_ITERATOR,
    keys.UID_RECIP_KEYS,
    keys.RECIP_KEY_UID,
    keys.UID_LAST_ACCESS,
    keys.MAIL,
)


@dataclass(frozen=True)
class Rules:
    """What the scripts have to be told besides the keys."""

    layout: str = "native"
    stale_after_ms: int = 15_000
    moves_max: int = MOVES_MAX


@dataclass(frozen=True)
class Instance:
    """One registered instance over all partitions; `silent_ms` is None if never heard of."""

    uid: str
    silent_ms: int | None
    keys: int
    has_mail: bool
    live: bool


@dataclass(frozen=True)
class KeyState:
    recip_key: str
    uid: str | None
    pending: int
    waiting: int
    silent_ms: int | None
    partition: int


@dataclass(frozen=True)
class Sweep:
    """`again`: there was more to do than one call may."""

    assigned: int
    moved: int
    again: bool
    instances: int = 0


@dataclass(frozen=True)
class Claim:
    """Keys with mail: those that may have been named before, and those named for the first time."""

    again: Sequence[str]
    fresh: Sequence[str]


@dataclass(frozen=True)
class DeadMessage:
    """A message that no instance could handle; `raw` is the letter as it stands in Redis."""

    id: str
    recip_key: str
    raw: bytes


@dataclass(frozen=True)
class Finished:
    """A key that an instance is done with: messages by id, with the reason of those given up."""

    recip_key: str
    endings: Sequence[tuple[str, str]]


class RoutingStore:
    def __init__(self, runtime: Runtime, rules: Rules, limits: Limits) -> None:
        self._runtime = runtime
        self._rules = rules
        self._bytes_max = limits.batch_bytes_max
        self.partitions = runtime.keyspace.partitions
        self.acapy = rules.layout == ACAPY
        self._maps = [self._names(MAPS, number) for number in range(self.partitions)]
        self._wake = runtime.keyspace.global_name(keys.INBOX_WAKE, "")
        # The two that are called for each batch leave out what the other layout needs.
        process = PROCESS_PAYLOAD_RECIP_KEY_ACAPY if self.acapy else PROCESS_PAYLOAD_RECIP_KEY
        self._claim_keys = CLAIM_KEYS_ACAPY if self.acapy else CLAIM_KEYS
        self._process = [
            runtime.batched(process, self._maps.__getitem__, self._book(number))
            for number in range(self.partitions)
        ]
        self._post = runtime.batched(
            POST_RESPONSES,
            lambda _: (),
            (
                runtime.keyspace.global_name(keys.RELAY_WAKE, ""),
                0 if self.acapy else RESPONSE_EXPIRES_MS,
            ),
        )

    # Messages in ---------------------------------------------------------------------------

    def process_payload_recip_key(
        self,
        recip_key: str,
        payload: bytes,
        transport_type: str | None = "http",
        txn_id: str | None = None,
    ) -> asyncio.Future[Any]:
        """Queue a message for the owner of its key; the future gives `queued` or `kept`.

        Messages of one key take effect in the order of these calls.
        """
        partition = self.partition_of(recip_key)
        if self.acapy:
            item = encode_inbound(payload, transport_type, txn_id)
            message_id = id_of(item.encode())
        else:
            message_id = time_ordered_id().hex
            item = encode_inbound(payload, transport_type, txn_id, message_id)
        name = self._runtime.keyspace.name(keys.INBOUND, partition, recip_key)
        entry = ((name,), (recip_key, message_id, item))
        queued = self._process[partition].submit(partition, entry, recip_key, len(item))
        if self._runtime.tracing is not None:
            self._runtime.tracing.when_queued(message_id, "routing accept", queued)
        return queued

    async def revive(self, letters: Sequence[DeadMessage]) -> list[str]:
        """Dead messages back to their keys: per letter `queued`, `kept`, `unknown`, `unreadable`.

        Each goes behind what its key got in the meantime.
        """
        statuses = [""] * len(letters)
        places: dict[int, list[int]] = {}
        for place, letter in enumerate(letters):
            places.setdefault(self.partition_of(letter.recip_key), []).append(place)
        name = self._runtime.keyspace.name
        for partition, mine in places.items():
            names, dead = [*self._maps[partition]], name(keys.INBOUND_DEAD, partition)
            args: list[Argument] = [*self._book(partition), len(mine)]
            for letter in (letters[place] for place in mine):
                names += (name(keys.INBOUND, partition, letter.recip_key), dead)
                args += (letter.recip_key, letter.id, letter.raw)
            replies = await self._runtime.run(REVIVE_INBOUND, partition, names, args)
            for place, reply in zip(mine, replies, strict=True):
                statuses[place] = status_of(reply)
        return statuses

    def partition_of(self, recip_key: str) -> int:
        return self._runtime.keyspace.partition_of(recip_key)

    # The seed's other operations ------------------------------------------------------------

    async def get_new_valid_uid(self, partition: int = 0, turns: int = 1) -> list[str]:
        reply = await self._run(GET_NEW_VALID_UID, partition, (turns,))
        return [uid.decode() for uid in reply]

    async def assign_recip_key_to_new_uid(self, recip_keys: Sequence[str]) -> list[str | None]:
        """The owner of each key, an earlier one or a new one; None when nobody is registered."""
        found: dict[str, str | None] = {}
        for partition, group in self._grouped(recip_keys):
            replies = await self._run(ASSIGN_RECIP_KEY_TO_NEW_UID, partition, (len(group), *group))
            for key, reply in zip(group, replies, strict=True):
                found[key] = reply[1].decode() if len(reply) > 1 else None
        return [found[key] for key in recip_keys]

    async def reassign_recip_key_to_uid(self, old_uid: str, recip_key: str) -> str | None:
        """The new owner; None when the old one is not the owner, or nobody else is live."""
        args = (1, old_uid, recip_key)
        ((status, *more),) = await self._run(
            REASSIGN_RECIP_KEY_TO_UID, self.partition_of(recip_key), args
        )
        return more[0].decode() if status == b"reassigned" else None

    # Instances -------------------------------------------------------------------------------

    async def touch(self, uid: str) -> bool:
        """Heard of now, in every partition; whether it had to be registered in one of them."""
        registered = False
        for partition in range(self.partitions):
            status = status_of(await self._run(TOUCH_UID, partition, (uid,)))
            if status == "full":
                raise InstancesFull("no number is left for another instance; remove old ones")
            registered |= status == "registered"
        return registered

    async def retire(self, uid: str) -> None:
        for partition in range(self.partitions):
            await self._run(RETIRE_UID, partition, (uid,))

    async def sweep(self) -> Sweep:
        assigned = moved = more = instances = 0
        for partition in range(self.partitions):
            reply = await self._run(SWEEP_UIDS, partition)
            assigned, moved, more = assigned + reply[1], moved + reply[2], more + reply[3]
            instances = max(instances, reply[4])
        return Sweep(assigned, moved, more > 0, instances)

    async def rebalance(self) -> int:
        """How many keys moved to instances that own fewer."""
        moved, more = 0, True
        while more:
            more = False
            for partition in range(self.partitions):
                reply = await self._run(REBALANCE_KEYS, partition)
                moved, more = moved + reply[1], more or reply[2] > 0
        return moved

    async def instances(self) -> tuple[list[Instance], int]:
        """Every instance, and how many keys with mail nobody owns."""
        found: dict[str, Instance] = {}
        unowned = 0
        for partition in range(self.partitions):
            reply = await self._run(LIST_UIDS, partition)
            unowned += reply[0]
            for at in range(1, len(reply), 5):
                uid, silent_ms, count, mail, live = reply[at : at + 5]
                one = Instance(
                    uid.decode(),
                    None if silent_ms < 0 else silent_ms,
                    count,
                    bool(mail),
                    bool(live),
                )
                found[one.uid] = _joined(found.get(one.uid), one)
        return list(found.values()), unowned

    async def show(self, recip_key: str) -> KeyState:
        partition = self.partition_of(recip_key)
        name = self._runtime.keyspace.name(keys.INBOUND, partition, recip_key)
        names = [*self._maps[partition], name]
        args = (*self._book(partition), 1, recip_key)
        ((uid, pending, waiting, silent_ms),) = await self._runtime.run(
            SHOW_KEYS, partition, names, args
        )
        if not uid and not waiting:
            raise RecipientUnknown(f"no message for {recip_key!r} has ever come by")
        return KeyState(
            recip_key,
            uid.decode() or None,
            pending,
            waiting,
            None if silent_ms < 0 else silent_ms,
            partition,
        )

    # An instance's own mail -------------------------------------------------------------------

    async def claim(
        self, uid: str, partition: int, keys_max: int, *, again: bool = False
    ) -> Claim | None:
        """Keys with mail; with `again` also those named before. None when it was removed."""
        reply = await self._run(self._claim_keys, partition, (uid, keys_max, int(again)))
        if status_of(reply) == "unknown":
            return None
        names = [key.decode() for key in reply[2:]]
        return Claim(names[: reply[1]], names[reply[1] :])

    async def take(
        self, uid: str, partition: int, recip_keys: Sequence[str], messages_max: int
    ) -> list[list[bytes] | str]:
        """The oldest messages of each key, raw; or `not_owner`, or `later`."""
        name = self._runtime.keyspace.name
        names = [name(keys.RECIP_KEY_UID, partition)]
        args: list[Argument] = [uid, self._bytes_max, len(recip_keys)]
        for key in recip_keys:
            names.append(name(keys.INBOUND, partition, key))
            args += (key, messages_max)
        replies = await self._runtime.run(TAKE_MESSAGES, partition, names, args)
        return [reply if isinstance(reply, list) else status_of(reply) for reply in replies]

    async def finish(self, uid: str, partition: int, done: Sequence[Finished]) -> list[str]:
        """Per key `finished`, `more` or `not_owner`. What is not named is ready again."""
        name = self._runtime.keyspace.name
        names = [
            name(keys.PENDING_COUNTS, partition),
            name(keys.INBOUND_DEAD, partition),
            name(keys.RECIP_KEY_UID, partition),
            name(keys.UID_LAST_ACCESS, partition),
            name(keys.MAIL, partition),
        ]
        args: list[Argument] = [self._rules.layout, uid, len(done)]
        for each in done:
            names.append(name(keys.INBOUND, partition, each.recip_key))
            args += (each.recip_key, len(each.endings))
            for ending in each.endings:
                args += ending
        replies = await self._runtime.run(FINISH_MESSAGES, partition, names, args)
        return [status_of(reply) for reply in replies]

    def mail_hints(self, uid: str) -> Subscription:
        """Partitions in which this instance has mail; `partition_in` reads one."""
        return self._runtime.redis.subscribe(self._wake + uid)

    # Direct responses --------------------------------------------------------------------------

    def post_response(self, response: DirectResponse) -> asyncio.Future[Any]:
        """To the relay whose name the transaction id begins with."""
        relay = response.txn_id.partition(".")[0]
        partition, name = self._responses_of(relay)
        item = encode_response(response)
        return self._post.submit(partition, ((name,), (relay, item)), relay, len(item))

    async def take_responses(self, relay: str) -> list[bytes]:
        partition, name = self._responses_of(relay)
        begins = f"{relay}." if self.acapy else ""
        reply = await self._runtime.run(TAKE_RESPONSES, partition, [name], (begins, RESPONSES_MAX))
        return list(reply)

    def response_hints(self, relay: str) -> Subscription:
        channel = self._runtime.keyspace.global_name(keys.RELAY_WAKE, relay)
        return self._runtime.redis.subscribe(channel)

    def _responses_of(self, relay: str) -> tuple[int, str]:
        name = self._runtime.keyspace.name
        if self.acapy:
            return 0, name(keys.DIRECT_RESPONSES, 0)
        partition = self.partition_of(relay)
        return partition, name(keys.RELAY_RESPONSES, partition, relay)

    # Inside -------------------------------------------------------------------------------------

    def _names(self, of: Sequence[keys.Key], partition: int) -> list[str]:
        return [self._runtime.keyspace.name(key, partition) for key in of]

    def _book(self, partition: int) -> tuple[Argument, ...]:
        rules = self._rules
        return (rules.layout, rules.stale_after_ms, rules.moves_max, self._wake, partition)

    async def _run(self, script: Any, partition: int, args: Sequence[Argument] = ()) -> Any:
        return await self._runtime.run(
            script, partition, self._maps[partition], (*self._book(partition), *args)
        )

    def _grouped(self, recip_keys: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        groups: dict[int, list[str]] = {}
        for key in recip_keys:
            groups.setdefault(self.partition_of(key), []).append(key)
        yield from groups.items()


def partition_in(hint: bytes, partitions: int) -> int | None:
    """The partition a hint names, or None when it is not one: anybody may publish."""
    number = int(hint) if hint.isdigit() else partitions
    return number if number < partitions else None


def _joined(one: Instance | None, other: Instance) -> Instance:
    """An instance as two partitions see it: its keys together, and the more recent sign."""
    if one is None:
        return other
    known = [each for each in (one.silent_ms, other.silent_ms) if each is not None]
    return Instance(
        one.uid,
        min(known) if known else None,
        one.keys + other.keys,
        one.has_mail or other.has_mail,
        one.live or other.live,
    )
