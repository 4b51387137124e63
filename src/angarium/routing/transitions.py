"""The changes of recipient keys, instances and inbound messages, declared once each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from angarium.routing import keys
from angarium.runtime.keyspace import Key
from angarium.runtime.transition import Transition

Item = TypeVar("Item", bound=tuple[Any, ...])
_PACKAGE = "angarium.routing"
_MAPS = {
    "counts": keys.PENDING_COUNTS,
    "iterator": keys.ROUND_ROBIN_ITERATOR,
    "keys": keys.UID_RECIP_KEYS,
    "owners": keys.RECIP_KEY_UID,
    "access": keys.UID_LAST_ACCESS,
    "mail": keys.MAIL,
    "attempts": keys.ATTEMPTS,
    "sessions": keys.SESSIONS,
}
_IN_HAND = {"owners": keys.RECIP_KEY_UID, "attempts": keys.ATTEMPTS, "sessions": keys.SESSIONS}
_LIST = {"list": keys.INBOUND}


class RuleArgs(NamedTuple):
    """The arguments of every script that assigns keys; `wake` begins the channels of instances."""

    layout_name: str
    stale_after_ms: int
    moves_max: int
    wake: str
    partition: int


class QueueArgs(NamedTuple):
    """Those, and how many messages may wait for a key."""

    layout_name: str
    stale_after_ms: int
    moves_max: int
    wake: str
    partition: int
    key_messages_max: int


class SweepArgs(NamedTuple):
    """`forget_idle` forgets keys without messages however lately they were used."""

    layout_name: str
    stale_after_ms: int
    moves_max: int
    wake: str
    partition: int
    instance_keep_ms: int
    key_keep_ms: int
    forget_idle: bool


class TouchItem(NamedTuple):
    uid: str
    session: str
    starting: bool


class RetireUidItem(NamedTuple):
    uid: str
    session: str


class RemoveItem(NamedTuple):
    uid: str
    force: bool


class KeyItem(NamedTuple):
    recip_key: str


class InboundListItem(NamedTuple):
    recip_key: str
    message_id: str
    message: str | bytes


class DeadItem(NamedTuple):
    recip_key: str
    message_id: str
    entry: bytes


class TurnsItem(NamedTuple):
    turns: int


class ReassignItem(NamedTuple):
    old_uid: str
    recip_key: str


class ClaimItem(NamedTuple):
    uid: str
    session: str
    keys_max: int
    again: bool


class TakeInboundArgs(NamedTuple):
    uid: str
    session: str
    bytes_max: int
    messages_max: int


class BeginArgs(NamedTuple):
    uid: str
    session: str


class BeginItem(NamedTuple):
    recip_key: str
    message_id: str
    attempt: int


class FinishArgs(NamedTuple):
    layout_name: str
    uid: str
    session: str


class FinishKeyItem(NamedTuple):
    """`ids` are separated by commas; `dead` is '' or JSON: id → reason of its dead letter.

    `more` is '' or the JSON of a `FinishMore`.
    """

    recip_key: str
    number_of_ids: int
    ids: str
    dead: str | bytes
    more: str | bytes


class ResponseArgs(NamedTuple):
    wake: str
    in_shared_list: bool
    expires_ms: int


class ResponseItem(NamedTuple):
    relay: str
    response: bytes


class TakeResponsesArgs(NamedTuple):
    relay: str
    in_shared_list: bool
    responses_max: int


class OwnerUid(NamedTuple):
    uid: str


class UidTurns(NamedTuple):
    uids: list[str]


class ListedUid(NamedTuple):
    """`silent_ms` is -1 without a heartbeat."""

    uid: str
    silent_ms: int
    keys: int
    has_mail: bool
    live: bool


class ListedUids(NamedTuple):
    unowned: int
    rows: list[ListedUid]


class ShownKey(NamedTuple):
    uid: str
    pending: int
    waiting: int
    silent_ms: int


class SweptUids(NamedTuple):
    assigned: int
    moved: int
    removed: int
    forgotten: int
    more: bool
    aging: bool
    instances: int


class RebalancedKeys(NamedTuple):
    moved: int
    more: bool


class ClaimedKeys(NamedTuple):
    """Keys with messages: `again` may have been claimed before, `fresh` have not."""

    again: list[str]
    fresh: list[str]


class TakenInbound(NamedTuple):
    messages: list[bytes]


class TriedMessage(NamedTuple):
    """The first message of a key, and what is known of earlier attempts at the message `id`.

    Without an id the attempt was at some message of the key.
    """

    message: bytes
    id: str
    attempts: int
    wait_ms: int
    reason: str


class TakenResponses(NamedTuple):
    responses: list[bytes]


def _by_rule(
    name: str,
    item: type[Item],
    replies: Mapping[str, type[tuple[Any, ...]] | None],
    item_keys: Mapping[str, Key] = {},
    *,
    args: type[tuple[Any, ...]] = RuleArgs,
    admits: bool = False,
) -> Transition[Item]:
    """A script that knows keys and instances, and the rules by which keys are assigned."""
    return Transition(
        _PACKAGE,
        name,
        keys=_MAPS,
        args=args,
        item=item,
        item_keys=item_keys,
        replies=replies,
        admits=admits,
    )


_QUEUED: dict[str, None] = {"queued": None, "kept": None}
# These two run for each batch, so each layout has a script without the other's code.
PROCESS_PAYLOAD_RECIP_KEY, PROCESS_PAYLOAD_RECIP_KEY_ACAPY = (
    _by_rule(
        name,
        InboundListItem,
        {**_QUEUED, "full": None},
        item_keys=_LIST,
        args=QueueArgs,
        admits=True,
    )
    for name in ("process_payload_recip_key", "process_payload_recip_key_acapy")
)
_CLAIMED = {"claimed": ClaimedKeys, "unknown": None}
CLAIM_KEYS, CLAIM_KEYS_ACAPY = (
    _by_rule(name, ClaimItem, _CLAIMED) for name in ("claim_keys", "claim_keys_acapy")
)
GET_NEW_VALID_UID = _by_rule("get_new_valid_uid", TurnsItem, {"turns": UidTurns})
ASSIGN_RECIP_KEY_TO_NEW_UID = _by_rule(
    "assign_recip_key_to_new_uid",
    KeyItem,
    {"assigned": OwnerUid, "owned": OwnerUid, "nobody": None},
)
REASSIGN_RECIP_KEY_TO_UID = _by_rule(
    "reassign_recip_key_to_uid",
    ReassignItem,
    {"reassigned": OwnerUid, "not_owner": None, "nobody": None},
)
TOUCH_UID = _by_rule(
    "touch_uid", TouchItem, {"touched": None, "registered": None, "full": None, "superseded": None}
)
RETIRE_UID = _by_rule(
    "retire_uid", RetireUidItem, {"retired": None, "removed": None, "unknown": None}
)
REMOVE_UID = _by_rule(
    "remove_uid", RemoveItem, {"removed": None, "more": None, "live": None, "unknown": None}
)
SWEEP_UIDS: Transition[Any] = Transition(
    _PACKAGE,
    "sweep_uids",
    keys={**_MAPS, "sweep": keys.SWEEP},
    args=SweepArgs,
    replies={"swept": SweptUids},
)
REBALANCE_KEYS: Transition[Any] = Transition(
    _PACKAGE, "rebalance_keys", keys=_MAPS, args=RuleArgs, replies={"rebalanced": RebalancedKeys}
)
LIST_UIDS: Transition[Any] = Transition(
    _PACKAGE, "list_uids", keys=_MAPS, args=RuleArgs, replies={"listed": ListedUids}
)
SHOW_KEYS = _by_rule("show_keys", KeyItem, {"shown": ShownKey}, item_keys=_LIST)
TAKE_MESSAGES = Transition(
    _PACKAGE,
    "take_messages",
    keys=_IN_HAND,
    args=TakeInboundArgs,
    item=KeyItem,
    item_keys=_LIST,
    replies={"taken": TakenInbound, "tried": TriedMessage, "not_owner": None, "later": None},
)
BEGIN_ATTEMPTS = Transition(
    _PACKAGE,
    "begin_attempts",
    keys=_IN_HAND,
    args=BeginArgs,
    item=BeginItem,
    replies={"begun": None, "not_owner": None},
)
FINISH_MESSAGES = Transition(
    _PACKAGE,
    "finish_messages",
    keys={
        "counts": keys.PENDING_COUNTS,
        "dead": keys.INBOUND_DEAD,
        "access": keys.UID_LAST_ACCESS,
        "mail": keys.MAIL,
        **_IN_HAND,
    },
    args=FinishArgs,
    item=FinishKeyItem,
    item_keys=_LIST,
    replies={"finished": None, "more": None, "not_owner": None},
)
REVIVE_INBOUND = Transition(
    _PACKAGE,
    "revive_inbound",
    keys={**_MAPS, "dead": keys.INBOUND_DEAD},
    args=RuleArgs,
    item=DeadItem,
    item_keys=_LIST,
    replies={**_QUEUED, "unknown": None, "unreadable": None},
)
# Layout `acapy` has one list for all relays, the shared one.
POST_RESPONSES = Transition(
    _PACKAGE,
    "post_responses",
    keys={"shared": keys.DIRECT_RESPONSES},
    args=ResponseArgs,
    item=ResponseItem,
    item_keys={"list": keys.RELAY_RESPONSES},
    replies={"posted": None},
)
TAKE_RESPONSES: Transition[Any] = Transition(
    _PACKAGE,
    "take_responses",
    keys={"responses": keys.RELAY_RESPONSES, "shared": keys.DIRECT_RESPONSES},
    args=TakeResponsesArgs,
    replies={"taken": TakenResponses},
)
