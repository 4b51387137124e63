"""Recipient keys, instances and inbound messages in Redis: one method for each transition.

The store decides nothing: it returns a script's reply as a value, or raises it as an error. It
serves both layouts; the scripts get the layout as an argument. The methods of the seed's four
operations have the seed's names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from angarium.redis.connection import Argument
from angarium.redis.subscription import Subscription
from angarium.routing import keys
from angarium.routing.errors import InstancesFull, RecipientUnknown
from angarium.routing.items import DirectResponse, encode_inbound, encode_response, id_of
from angarium.runtime.ids import time_ordered_id
from angarium.runtime.key import Key
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
# Keys of a stale instance that one call moves: about ten milliseconds of Redis time.
MOVES_MAX = 1_000
# Callers wait for 15 s, so an older response has no caller.
RESPONSE_EXPIRES_MS = 60_000
# Of one call. In the list that all relays share, older responses for other relays are dropped.
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
class RoutingRules:
    """The arguments that the scripts share."""

    layout: str = "native"
    stale_after_ms: int = 15_000
    moves_max: int = MOVES_MAX


@dataclass(frozen=True)
class RoutingInstance:
    """One registered instance over all partitions; `silent_ms` is None without a heartbeat."""

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
class InstanceSweep:
    """`again`: one call may not do all the work that was found."""

    assigned: int
    moved: int
    again: bool
    instances: int = 0


@dataclass(frozen=True)
class ClaimedKeys:
    """Keys with messages: `again` may have been claimed before, `fresh` have not."""

    again: Sequence[str]
    fresh: Sequence[str]


@dataclass(frozen=True)
class StoredDeadLetter:
    """A message that no instance could handle; `raw` is the dead letter as stored in Redis."""

    id: str
    recip_key: str
    raw: bytes


@dataclass(frozen=True)
class FinishedKey:
    """A key that an instance releases.

    Each ending is the id of a message and the reason if it is a dead letter, otherwise ''.
    """

    recip_key: str
    endings: Sequence[tuple[str, str]]


class RoutingStore:
    def __init__(self, runtime: Runtime, rules: RoutingRules) -> None:
        self._runtime = runtime
        self._rules = rules
        self._bytes_max = runtime.options.limits.batch_bytes_max
        self.partitions = runtime.keyspace.partitions
        self.acapy = rules.layout == ACAPY
        self._maps = [self._names(MAPS, number) for number in range(self.partitions)]
        self._wake = runtime.keyspace.global_name(keys.INBOX_WAKE, "")
        # These two run for each batch, so each layout has a script without the other's code.
        process = PROCESS_PAYLOAD_RECIP_KEY_ACAPY if self.acapy else PROCESS_PAYLOAD_RECIP_KEY
        self._claim_keys = CLAIM_KEYS_ACAPY if self.acapy else CLAIM_KEYS
        self._process = [
            runtime.batched(process, self._maps.__getitem__, self._shared_args(number))
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

    # Inbound messages ----------------------------------------------------------------------

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

    async def revive(self, dead_letters: Sequence[StoredDeadLetter]) -> list[str]:
        """Queue dead letters again: for each `queued`, `kept`, `unknown` or `unreadable`.

        Each goes to the end of its key's list.
        """
        statuses = [""] * len(dead_letters)
        places: dict[int, list[int]] = {}
        for place, each in enumerate(dead_letters):
            places.setdefault(self.partition_of(each.recip_key), []).append(place)
        name = self._runtime.keyspace.name
        for partition, mine in places.items():
            names, dead = [*self._maps[partition]], name(keys.INBOUND_DEAD, partition)
            args: list[Argument] = [*self._shared_args(partition), len(mine)]
            for each in (dead_letters[place] for place in mine):
                names += (name(keys.INBOUND, partition, each.recip_key), dead)
                args += (each.recip_key, each.id, each.raw)
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
        """The present or new owner of each key; None when no instance is registered."""
        found: dict[str, str | None] = {}
        for partition, group in self._grouped(recip_keys):
            replies = await self._run(ASSIGN_RECIP_KEY_TO_NEW_UID, partition, (len(group), *group))
            for key, reply in zip(group, replies, strict=True):
                found[key] = reply[1].decode() if len(reply) > 1 else None
        return [found[key] for key in recip_keys]

    async def reassign_recip_key_to_uid(self, old_uid: str, recip_key: str) -> str | None:
        """The new owner; None when `old_uid` is not the owner, or no other instance is live."""
        args = (1, old_uid, recip_key)
        ((status, *more),) = await self._run(
            REASSIGN_RECIP_KEY_TO_UID, self.partition_of(recip_key), args
        )
        return more[0].decode() if status == b"reassigned" else None

    # Instances -------------------------------------------------------------------------------

    async def touch(self, uid: str) -> bool:
        """Record a heartbeat in every partition; True when one of them registered the instance."""
        registered = False
        for partition in range(self.partitions):
            status = status_of(await self._run(TOUCH_UID, partition, (uid,)))
            if status == "full":
                raise InstancesFull(
                    "no instance number is free; stop instances that are not needed"
                )
            registered |= status == "registered"
        return registered

    async def retire(self, uid: str) -> None:
        for partition in range(self.partitions):
            await self._run(RETIRE_UID, partition, (uid,))

    async def sweep(self) -> InstanceSweep:
        assigned = moved = more = instances = 0
        for partition in range(self.partitions):
            reply = await self._run(SWEEP_UIDS, partition)
            assigned, moved, more = assigned + reply[1], moved + reply[2], more + reply[3]
            instances = max(instances, reply[4])
        return InstanceSweep(assigned, moved, more > 0, instances)

    async def rebalance(self) -> int:
        """Move idle keys to instances that own fewer; returns how many moved."""
        moved, more = 0, True
        while more:
            more = False
            for partition in range(self.partitions):
                reply = await self._run(REBALANCE_KEYS, partition)
                moved, more = moved + reply[1], more or reply[2] > 0
        return moved

    async def instances(self) -> tuple[list[RoutingInstance], int]:
        """Every instance, and the number of keys with messages and without an owner."""
        found: dict[str, RoutingInstance] = {}
        unowned = 0
        for partition in range(self.partitions):
            reply = await self._run(LIST_UIDS, partition)
            unowned += reply[0]
            for at in range(1, len(reply), 5):
                uid, silent_ms, count, mail, live = reply[at : at + 5]
                one = RoutingInstance(
                    uid.decode(),
                    None if silent_ms < 0 else silent_ms,
                    count,
                    bool(mail),
                    bool(live),
                )
                found[one.uid] = _merged(found.get(one.uid), one)
        return list(found.values()), unowned

    async def show(self, recip_key: str) -> KeyState:
        partition = self.partition_of(recip_key)
        name = self._runtime.keyspace.name(keys.INBOUND, partition, recip_key)
        names = [*self._maps[partition], name]
        args = (*self._shared_args(partition), 1, recip_key)
        ((uid, pending, waiting, silent_ms),) = await self._runtime.run(
            SHOW_KEYS, partition, names, args
        )
        if not uid and not waiting:
            raise RecipientUnknown(f"no message for {recip_key!r} has ever arrived")
        return KeyState(
            recip_key,
            uid.decode() or None,
            pending,
            waiting,
            None if silent_ms < 0 else silent_ms,
            partition,
        )

    # The messages of one instance -------------------------------------------------------------

    async def claim(
        self, uid: str, partition: int, keys_max: int, *, again: bool = False
    ) -> ClaimedKeys | None:
        """Keys with messages, with `again` also those claimed before; None for a removed uid."""
        reply = await self._run(self._claim_keys, partition, (uid, keys_max, int(again)))
        if status_of(reply) == "unknown":
            return None
        names = [key.decode() for key in reply[2:]]
        return ClaimedKeys(names[: reply[1]], names[reply[1] :])

    async def take(
        self, uid: str, partition: int, recip_keys: Sequence[str], messages_max: int
    ) -> list[list[bytes] | str]:
        """For each key its oldest messages, raw, or `not_owner`, or `later`."""
        name = self._runtime.keyspace.name
        names = [name(keys.RECIP_KEY_UID, partition)]
        args: list[Argument] = [uid, self._bytes_max, len(recip_keys)]
        for key in recip_keys:
            names.append(name(keys.INBOUND, partition, key))
            args += (key, messages_max)
        replies = await self._runtime.run(TAKE_MESSAGES, partition, names, args)
        return [reply if isinstance(reply, list) else status_of(reply) for reply in replies]

    async def finish(self, uid: str, partition: int, done: Sequence[FinishedKey]) -> list[str]:
        """For each key `finished`, `more` or `not_owner`. Its other messages can be claimed."""
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

    def message_hints(self, uid: str) -> Subscription:
        """Partitions in which this instance has messages; `hinted_partition` reads one."""
        return self._runtime.redis.subscribe(self._wake + uid)

    # Direct responses --------------------------------------------------------------------------

    def post_response(self, response: DirectResponse) -> asyncio.Future[Any]:
        """To the relay whose id the transaction id begins with."""
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

    # Arguments of the scripts ---------------------------------------------------------------------

    def _names(self, of: Sequence[Key], partition: int) -> list[str]:
        return [self._runtime.keyspace.name(key, partition) for key in of]

    def _shared_args(self, partition: int) -> tuple[Argument, ...]:
        rules = self._rules
        return (rules.layout, rules.stale_after_ms, rules.moves_max, self._wake, partition)

    async def _run(self, script: Any, partition: int, args: Sequence[Argument] = ()) -> Any:
        return await self._runtime.run(
            script, partition, self._maps[partition], (*self._shared_args(partition), *args)
        )

    def _grouped(self, recip_keys: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        groups: dict[int, list[str]] = {}
        for key in recip_keys:
            groups.setdefault(self.partition_of(key), []).append(key)
        yield from groups.items()


def hinted_partition(hint: bytes, partitions: int) -> int | None:
    """The partition that a hint names; None for any other text: any client may publish."""
    number = int(hint) if hint.isdigit() else partitions
    return number if number < partitions else None


def _merged(one: RoutingInstance | None, other: RoutingInstance) -> RoutingInstance:
    """One instance in two partitions: the sum of its keys, and its latest heartbeat."""
    if one is None:
        return other
    known = [each for each in (one.silent_ms, other.silent_ms) if each is not None]
    return RoutingInstance(
        one.uid,
        min(known) if known else None,
        one.keys + other.keys,
        one.has_mail or other.has_mail,
        one.live or other.live,
    )
