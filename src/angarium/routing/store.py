"""Recipient keys, instances and inbound messages in Redis: one method for each transition.

The store decides nothing: it returns a script's reply as a value, or raises it as an error. It
serves both layouts; the scripts get the layout as an argument. The methods of the seed's four
operations have the seed's names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from angarium.redis.subscription import Subscription
from angarium.routing import keys, transitions
from angarium.routing.errors import (
    InstanceLive,
    InstancesFull,
    InstanceSuperseded,
    RecipientQueueFull,
    RecipientUnknown,
)
from angarium.routing.finished_keys import FinishedKey, finish_item
from angarium.routing.instances import InstanceSweep, RoutingInstance, heartbeat_age_ms, merged
from angarium.routing.items import DirectResponse, encode_inbound, encode_response, id_of
from angarium.routing.limits import RoutingLimits
from angarium.routing.transitions import (
    BeginArgs,
    BeginItem,
    ClaimedKeys,
    ClaimItem,
    DeadItem,
    FinishArgs,
    InboundListItem,
    KeyItem,
    OwnerUid,
    QueueArgs,
    ReassignItem,
    RemoveItem,
    ResponseArgs,
    ResponseItem,
    RetireUidItem,
    RuleArgs,
    ShownKey,
    SweepArgs,
    SweptUids,
    TakeInboundArgs,
    TakenInbound,
    TakeResponsesArgs,
    TouchItem,
    TriedMessage,
    TurnsItem,
)
from angarium.runtime.ids import time_ordered_id
from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition

Item = TypeVar("Item", bound=tuple[Any, ...])
ACAPY = "acapy"
# Keys that one call moves: about ten milliseconds of Redis time.
MOVES_MAX = 1_000
# Callers wait for 15 s, so an older response has no caller.
RESPONSE_EXPIRES_MS = 60_000
# Of one call. In the list that all relays share, older responses for other relays are dropped.
RESPONSES_MAX = 1_000


@dataclass(frozen=True)
class RoutingRules:
    """The arguments that the scripts share."""

    layout: str = "native"
    stale_after_ms: int = 15_000
    moves_max: int = MOVES_MAX
    instance_keep_ms: int = 3_600_000
    key_keep_ms: int = 7 * 86_400_000
    key_messages_max: int = RoutingLimits.recip_key_messages_max


@dataclass(frozen=True)
class KeyState:
    recip_key: str
    uid: str | None
    pending: int
    waiting: int
    silent_ms: int | None
    partition: int


@dataclass(frozen=True)
class StoredDeadLetter:
    """A message that no instance could handle; `raw` is the dead letter as stored in Redis."""

    id: str
    recip_key: str
    raw: bytes


class RoutingStore:
    def __init__(self, runtime: Runtime, rules: RoutingRules) -> None:
        self._runtime = runtime
        self._rules = rules
        self._bytes_max = runtime.options.limits.batch_bytes_max
        self.partitions = runtime.keyspace.partitions
        self.acapy = rules.layout == ACAPY
        self._wake = runtime.keyspace.global_name(keys.INBOX_WAKE, "")
        self._args = [
            RuleArgs(rules.layout, rules.stale_after_ms, rules.moves_max, self._wake, number)
            for number in range(self.partitions)
        ]
        process, self._claim_keys = transitions.PROCESS_PAYLOAD_RECIP_KEY, transitions.CLAIM_KEYS
        if self.acapy:
            process = transitions.PROCESS_PAYLOAD_RECIP_KEY_ACAPY
            self._claim_keys = transitions.CLAIM_KEYS_ACAPY
        key_max = rules.key_messages_max
        self._process = [runtime.batch(process, QueueArgs(*args, key_max)) for args in self._args]
        wake = runtime.keyspace.global_name(keys.RELAY_WAKE, "")
        response_args = ResponseArgs(wake, self.acapy, RESPONSE_EXPIRES_MS)
        self._post = runtime.batch(transitions.POST_RESPONSES, response_args)

    # Inbound messages ----------------------------------------------------------------------

    def process_payload_recip_key(
        self,
        recip_key: str,
        payload: bytes,
        transport_type: str | None = "http",
        txn_id: str | None = None,
    ) -> asyncio.Future[Any]:
        """Queue a message for the owner of its key; the future gives `queued`, `kept` or `full`.

        Messages of one key take effect in the order of these calls.
        """
        partition = self.partition_of(recip_key)
        if self.acapy:
            item = encode_inbound(payload, transport_type, txn_id)
            message_id = id_of(item.encode())
        else:
            message_id = time_ordered_id().hex
            item = encode_inbound(payload, transport_type, txn_id, message_id)
        entry = InboundListItem(recip_key, message_id, item)
        queued = self._process[partition].submit(partition, entry, recip_key, len(item))
        if self._runtime.tracing is not None:
            self._runtime.tracing.when_queued(message_id, "routing accept", queued)
        return queued

    def queue_full(self) -> RecipientQueueFull:
        """The error of a message that was not queued because the list of its key is full."""
        return RecipientQueueFull("recip_key_messages_max", self._rules.key_messages_max)

    async def revive(self, dead_letters: Sequence[StoredDeadLetter]) -> list[str]:
        """Queue dead letters again: for each `queued`, `kept`, `unknown` or `unreadable`.

        Each goes to the end of its key's list.
        """
        statuses = [""] * len(dead_letters)
        for partition, places in self._grouped([each.recip_key for each in dead_letters]):
            mine = [dead_letters[place] for place in places]
            items = [DeadItem(each.recip_key, each.id, each.raw) for each in mine]
            replies = await self._call(transitions.REVIVE_INBOUND, partition, items)
            for place, reply in zip(places, replies, strict=True):
                statuses[place] = reply
        return statuses

    def partition_of(self, recip_key: str) -> int:
        return self._runtime.keyspace.partition_of(recip_key)

    # The seed's other operations ------------------------------------------------------------

    async def get_new_valid_uid(self, partition: int = 0, turns: int = 1) -> list[str]:
        items = [TurnsItem(turns)]
        (reply,) = await self._call(transitions.GET_NEW_VALID_UID, partition, items)
        return list(reply.uids)

    async def assign_recip_key_to_new_uid(self, recip_keys: Sequence[str]) -> list[str | None]:
        """The present or new owner of each key; None when no instance is registered."""
        found: list[str | None] = [None] * len(recip_keys)
        for partition, places in self._grouped(recip_keys):
            items = [KeyItem(recip_keys[place]) for place in places]
            replies = await self._call(transitions.ASSIGN_RECIP_KEY_TO_NEW_UID, partition, items)
            for place, reply in zip(places, replies, strict=True):
                found[place] = reply.uid if isinstance(reply, OwnerUid) else None
        return found

    async def reassign_recip_key_to_uid(self, old_uid: str, recip_key: str) -> str | None:
        """The new owner; None when `old_uid` is not the owner, or no other instance is live."""
        items, partition = [ReassignItem(old_uid, recip_key)], self.partition_of(recip_key)
        (reply,) = await self._call(transitions.REASSIGN_RECIP_KEY_TO_UID, partition, items)
        return reply.uid if isinstance(reply, OwnerUid) else None

    # Instances -------------------------------------------------------------------------------

    async def touch(self, uid: str, session: str = "", *, starting: bool = False) -> bool:
        """Record a heartbeat in every partition; True when one of them registered the instance.

        A process that starts becomes the instance: what an earlier process of this uid has in hand
        is due again, and its writes are refused.
        """
        registered, items = False, [TouchItem(uid, session, starting)]
        for partition in range(self.partitions):
            (reply,) = await self._call(transitions.TOUCH_UID, partition, items)
            if reply == "full":
                raise InstancesFull("no instance number is free; remove instances that are gone")
            if reply == "superseded":
                raise InstanceSuperseded(f"another process has started as the instance {uid!r}")
            registered |= reply == "registered"
        return registered

    async def retire(self, uid: str, session: str = "") -> None:
        for partition in range(self.partitions):
            await self._call(transitions.RETIRE_UID, partition, [RetireUidItem(uid, session)])

    async def remove(self, uid: str, *, force: bool = False) -> bool:
        """Whether it was known. Raises InstanceLive without `force`."""
        known = False
        for partition in range(self.partitions):
            reply = "more"
            while reply == "more":
                items = [RemoveItem(uid, force)]
                (reply,) = await self._call(transitions.REMOVE_UID, partition, items)
            if reply == "live":
                raise InstanceLive(f"the instance {uid!r} is live; stop it, or use force")
            known |= reply == "removed"
        return known

    async def sweep(
        self,
        instance_keep_ms: int | None = None,
        key_keep_ms: int | None = None,
        *,
        forget_idle: bool = False,
    ) -> InstanceSweep:
        """One pass over some instances and some keys, with the rules' retention or another."""
        rules = self._rules
        found: list[SweptUids] = []
        for args in self._args:
            keep_ms = rules.instance_keep_ms if instance_keep_ms is None else instance_keep_ms
            key_ms = rules.key_keep_ms if key_keep_ms is None else key_keep_ms
            sweep_args = SweepArgs(*args, keep_ms, key_ms, forget_idle)
            call = self._runtime.call
            found.append(await call(transitions.SWEEP_UIDS, args.partition, sweep_args))
        return InstanceSweep(
            assigned=sum(each.assigned for each in found),
            moved=sum(each.moved for each in found),
            again=any(each.more for each in found),
            instances=max(each.instances for each in found),
            removed=sum(each.removed for each in found),
            forgotten=sum(each.forgotten for each in found),
            aging=any(each.aging for each in found),
        )

    async def rebalance(self) -> int:
        """Move idle keys to instances that own fewer; returns how many moved."""
        moved, more = 0, True
        while more:
            more = False
            for partition in range(self.partitions):
                reply = await self._call(transitions.REBALANCE_KEYS, partition)
                moved, more = moved + reply.moved, more or reply.more
        return moved

    async def instances(self) -> tuple[list[RoutingInstance], int]:
        """Every instance, and the number of keys with messages and without an owner."""
        found: dict[str, RoutingInstance] = {}
        unowned = 0
        for partition in range(self.partitions):
            listed = await self._call(transitions.LIST_UIDS, partition)
            unowned += listed.unowned
            for row in listed.rows:
                found[row.uid] = merged(found.get(row.uid), row)
        return list(found.values()), unowned

    async def show(self, recip_key: str) -> KeyState:
        partition = self.partition_of(recip_key)
        shown: ShownKey
        (shown,) = await self._call(transitions.SHOW_KEYS, partition, [KeyItem(recip_key)])
        if not shown.uid and not shown.waiting:
            raise RecipientUnknown(
                f"no message for {recip_key!r} waits, and no instance owns the key"
            )
        silent_ms = heartbeat_age_ms(shown.silent_ms)
        uid = shown.uid or None
        return KeyState(recip_key, uid, shown.pending, shown.waiting, silent_ms, partition)

    # The messages of one instance -------------------------------------------------------------

    async def claim(
        self, uid: str, partition: int, keys_max: int, *, again: bool = False, session: str = ""
    ) -> ClaimedKeys | None:
        """Keys with messages, with `again` also those claimed before; None for a removed uid."""
        items = [ClaimItem(uid, session, keys_max, again)]
        (reply,) = await self._call(self._claim_keys, partition, items)
        return reply if isinstance(reply, ClaimedKeys) else None

    async def take(
        self,
        uid: str,
        partition: int,
        recip_keys: Sequence[str],
        messages_max: int,
        session: str = "",
    ) -> list[TakenInbound | TriedMessage | str]:
        """For each key its oldest messages, raw, or one that was tried, `not_owner` or `later`."""
        args = TakeInboundArgs(uid, session, self._bytes_max, messages_max)
        items = [KeyItem(key) for key in recip_keys]
        found: list[TakenInbound | TriedMessage | str]
        found = await self._runtime.call(transitions.TAKE_MESSAGES, partition, args, items)
        return found

    async def begin(
        self, uid: str, recip_key: str, message_id: str, attempt: int, session: str = ""
    ) -> bool:
        """Count an attempt before it is made; False if another instance owns the key."""
        items, partition = [BeginItem(recip_key, message_id, attempt)], self.partition_of(recip_key)
        args, call = BeginArgs(uid, session), self._runtime.call
        (reply,) = await call(transitions.BEGIN_ATTEMPTS, partition, args, items)
        return bool(reply == "begun")

    async def finish(
        self, uid: str, partition: int, done: Sequence[FinishedKey], session: str = ""
    ) -> list[str]:
        """For each key `finished`, `more` or `not_owner`. Its other messages can be claimed."""
        items = [finish_item(each) for each in done]
        args = FinishArgs(self._rules.layout, uid, session)
        found: list[str]
        found = await self._runtime.call(transitions.FINISH_MESSAGES, partition, args, items)
        return found

    def message_hints(self, uid: str) -> Subscription:
        """Partitions in which this instance has messages; `hinted_partition` reads one."""
        return self._runtime.subscribe(self._wake + uid)

    # Direct responses --------------------------------------------------------------------------

    def post_response(self, response: DirectResponse) -> asyncio.Future[Any]:
        """To the relay whose id the transaction id begins with."""
        relay, item = response.txn_id.partition(".")[0], encode_response(response)
        partition = self.partition_of(relay)
        return self._post.submit(partition, ResponseItem(relay, item), relay, len(item))

    async def take_responses(self, relay: str) -> list[bytes]:
        args = TakeResponsesArgs(relay, self.acapy, RESPONSES_MAX)
        call = self._runtime.call
        reply = await call(transitions.TAKE_RESPONSES, self.partition_of(relay), args)
        return list(reply.responses)

    def response_hints(self, relay: str) -> Subscription:
        channel = self._runtime.keyspace.global_name(keys.RELAY_WAKE, relay)
        return self._runtime.subscribe(channel)

    async def _call(
        self, transition: Transition[Item], partition: int, items: Sequence[Item] = ()
    ) -> Any:
        return await self._runtime.call(transition, partition, self._args[partition], items)

    def _grouped(self, recip_keys: Sequence[str]) -> list[tuple[int, list[int]]]:
        """Places in the list, by partition."""
        groups: dict[int, list[int]] = {}
        for place, key in enumerate(recip_keys):
            groups.setdefault(self.partition_of(key), []).append(place)
        return list(groups.items())


def hinted_partition(hint: bytes, partitions: int) -> int | None:
    """The partition that a hint names; None for any other text: any client may publish."""
    number = int(hint) if hint.isdigit() else partitions
    return number if number < partitions else None
