"""The transitions of requests and replies: their keys, arguments, items and replies by name.

`lua/include/conversation.lua` describes what the keys hold. All keys of a conversation are in the
partition of its id.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from angarium.conversations import keys
from angarium.runtime.keyspace import Key
from angarium.runtime.transition import Item, Transition

PACKAGE = "angarium.conversations"


class SharedArgs(NamedTuple):
    """Times in ms. `senders`: names of the process's senders as JSON, '' for any. `own`: the name
    under which this store holds replies."""

    message_ttl: int
    awaited_ttl: int
    pending_ttl: int
    sent_ttl: int
    requests_max: int
    replies_max: int
    senders: bytes
    own: str


class CancelArgs(NamedTuple):
    message_ttl: int
    awaited_ttl: int
    pending_ttl: int
    sent_ttl: int
    requests_max: int
    replies_max: int
    senders: bytes
    own: str
    conversation_id: str
    request_id: str
    request_member: bytes
    anchor_member: bytes
    close: bool
    whole_group: bool
    status: str
    except_origin: str
    why: str
    keep_ms: int
    dead_max: int


# Items


class RequestItem(NamedTuple):
    conversation_id: str
    origin: str
    request_id: str
    timestamp: int
    corr: str
    member: bytes


class AcceptItem(NamedTuple):
    """`hold`: 'always', 'near' if the reply is near its turn, or ''."""

    conversation_id: str
    request_id: str
    response_id: str
    timestamp: int
    task: bytes
    corr: str
    member: bytes
    request_member: bytes
    hold: str
    origin: str
    sender: str


class CheckItem(NamedTuple):
    conversation_id: str
    request_id: str
    response_id: str
    member: bytes
    only_mine: bool


class SentItem(NamedTuple):
    conversation_id: str
    response_id: str
    member: bytes
    async_request_id: str


class FinishItem(NamedTuple):
    conversation_id: str
    request_id: str
    response_id: str
    member: bytes
    reason: str
    async_request_id: str


class Most(NamedTuple):
    most: int


class TakeItem(NamedTuple):
    conversation_id: str
    request_id: str
    response_id: str
    member: bytes
    claim: str


class AwaitItem(NamedTuple):
    conversation_id: str
    response_id: str
    member: bytes
    wait_ms: int
    retry_ms: int
    why: str
    tried: bool


class PostponeItem(NamedTuple):
    conversation_id: str
    response_id: str
    member: bytes
    wait_ms: int
    retry_ms: int
    renew_only: bool


class RetireItem(NamedTuple):
    conversation_id: str
    response_id: str
    member: bytes
    after_ms: int


class ExpireItem(NamedTuple):
    conversation_id: str
    request_id: str
    member: bytes


class CancelItem(NamedTuple):
    response_id: str
    member: bytes


class DropRepliesArgs(NamedTuple):
    retried: bool


class DropReplyItem(NamedTuple):
    response_id: str
    member: bytes
    died_at_ms: int


class SiblingsItem(NamedTuple):
    conversation_id: str
    request_id: str
    member: bytes
    most: int
    last_first: bool


class DescribeItem(NamedTuple):
    conversation_id: str
    most: int


class MessageItem(NamedTuple):
    request_id: str
    response_id: str


class ReplyAckItem(NamedTuple):
    async_request_id: str


# Replies


class Created(NamedTuple):
    position: int


class KnownRequest(NamedTuple):
    position: int


class AcceptedReplies(NamedTuple):
    score: int
    held: bool
    origin: str
    request_timestamp: int


class MaySend(NamedTuple):
    hold_ms: int


class BehindReply(NamedTuple):
    member: bytes
    left_ms: int
    holder: str


class BehindRequest(NamedTuple):
    request_key: str
    left_ms: int


class Delivered(NamedTuple):
    """`next_member`: the next reply if the caller holds it, or b''."""

    next_member: bytes


class CancelledReply(NamedTuple):
    next_member: bytes


class ExpiredReply(NamedTuple):
    next_member: bytes


class Claimed(NamedTuple):
    claim: str
    now_ms: int
    next_due: float
    members: list[bytes]


class GroupMembers(NamedTuple):
    members: list[bytes]


class Taken(NamedTuple):
    score: int
    retries: int
    left_ms: int
    task: bytes
    origin: bytes
    corr: bytes
    request_timestamp: bytes
    response_timestamp: bytes
    attempts: bytes


class NoSender(NamedTuple):
    required: bytes


class DueAt(NamedTuple):
    due_ms: int


class HeldBy(NamedTuple):
    holder: str


class Renewed(NamedTuple):
    until_ms: int


class Retiring(NamedTuple):
    until_ms: int


class CancelledGroup(NamedTuple):
    cancelled: int
    next_member: bytes


class RequestRow(NamedTuple):
    key: str
    position: int
    until_ms: int
    answered: bool


class ReplyRow(NamedTuple):
    member: bytes
    score: int
    until_ms: int
    state: str
    holder: str
    due: float
    required: str
    since: float


class Described(NamedTuple):
    now_ms: int
    requests_total: int
    replies_total: int
    requests: list[RequestRow]
    replies: list[ReplyRow]


class SenderWaitRow(NamedTuple):
    required: bytes
    waiting: int
    since: float


class SenderWaits(NamedTuple):
    now_ms: int
    rows: list[SenderWaitRow]


class Fields(NamedTuple):
    fields: list[bytes]


class AckFound(NamedTuple):
    member: bytes


SHARED_KEYS = {"pending": keys.PENDING_MESSAGES, "open": keys.OPEN_REQUESTS}
WAIT_SETS = {"waiting": keys.WAITING_SENDER}
REQUEST = {"request": keys.CONVERSATION_REQUEST}
RESPONSE = {"response": keys.CONVERSATION_RESPONSE}
REQUESTS = {"requests": keys.CONVERSATION_REQUESTS}
RESPONSES = {"responses": keys.CONVERSATION_RESPONSES}
ORDER = {"order": keys.CONVERSATION_ORDER}
ACK = {"ack": keys.ASYNC_REQUEST}
DEAD = {"dead": keys.DEAD_REPLIES}
DEAD_REPLY = {"dead_reply": keys.DEAD_REPLY}
ALL_KEYS = REQUEST | RESPONSE | REQUESTS | RESPONSES | ORDER


def _declare(
    name: str,
    item: type[Item],
    item_keys: dict[str, Key],
    *,
    admits: bool = False,
    **replies: type[tuple[Any, ...]] | None,
) -> Transition[Item]:
    """A transition with the keys and arguments that most scripts of the module share."""
    return Transition(
        PACKAGE,
        name,
        keys=SHARED_KEYS,
        stems=WAIT_SETS,
        channels={"wake": keys.CONVERSATIONS_WAKE},
        args=SharedArgs,
        item=item,
        item_keys=item_keys,
        replies=replies,
        admits=admits,
    )


CREATE_REQUESTS = _declare(
    "create_requests", RequestItem, REQUEST | REQUESTS | ORDER, admits=True,
    created=Created, duplicate=KnownRequest, taken=None, full=None,
)  # fmt: skip
ACCEPT_REPLIES = _declare(
    "accept_replies", AcceptItem, ALL_KEYS,
    accepted=AcceptedReplies, duplicate=None, taken=None, request_unknown=None,
    wrong_conversation=None, full=None,
)  # fmt: skip
CHECK_REPLIES = _declare(
    "check_replies", CheckItem, ALL_KEYS,
    send=MaySend, wait_response=BehindReply, wait_request=BehindRequest, gone=None,
)  # fmt: skip
REPORT_SENT = _declare(
    "report_sent", SentItem, RESPONSE | RESPONSES | ORDER | ACK,
    sent=None, ack_taken=None, repeated=None, gone=None,
)  # fmt: skip
FINISH_REPLIES = _declare(
    "finish_replies", FinishItem, ALL_KEYS | ACK,
    delivered=Delivered, cancelled=CancelledReply, gone=None,
)  # fmt: skip
CLAIM_AWAITED = _declare("claim_awaited", Most, {}, claimed=Claimed)
POP_WAITING = _declare("pop_waiting", Most, {}, popped=GroupMembers)
TAKE_REPLIES = _declare(
    "take_replies", TakeItem, ALL_KEYS,
    taken=Taken, expired=ExpiredReply, delivered=Delivered, no_sender=NoSender, awaited=None,
    later=None, lost=None, gone=None,
)  # fmt: skip
AWAIT_REPLIES = _declare(
    "await_replies", AwaitItem, RESPONSE | RESPONSES | ORDER,
    awaited=DueAt, sent=None, held=HeldBy, gone=None,
)  # fmt: skip
POSTPONE_REPLIES = _declare(
    "postpone_replies", PostponeItem, RESPONSE | RESPONSES | ORDER,
    postponed=DueAt, renewed=Renewed, sent=None, held=HeldBy, gone=None,
)  # fmt: skip
RETIRE_REPLIES = _declare(
    "retire_replies", RetireItem, RESPONSE | RESPONSES | ORDER, retiring=Retiring, gone=None
)
LIST_EXPIRED_REQUESTS = _declare("list_expired_requests", Most, {}, listed=GroupMembers)
EXPIRE_REQUESTS = _declare(
    "expire_requests", ExpireItem, REQUEST | REQUESTS | ORDER, expired=None, open=None, gone=None
)
LIST_SIBLINGS = _declare("list_siblings", SiblingsItem, REQUEST | RESPONSES, listed=GroupMembers)
LIST_SENDER_WAITS = _declare("list_sender_waits", Most, {}, listed=SenderWaits)
DESCRIBE_CONVERSATION = _declare(
    "describe_conversation", DescribeItem, REQUESTS | RESPONSES | ORDER, described=Described
)
CANCEL_REPLIES = Transition(
    PACKAGE,
    "cancel_replies",
    keys=SHARED_KEYS | REQUEST | REQUESTS | RESPONSES | ORDER | DEAD,
    stems=WAIT_SETS,
    channels={"wake": keys.CONVERSATIONS_WAKE},
    args=CancelArgs,
    item=CancelItem,
    item_keys=RESPONSE | DEAD_REPLY,
    replies={"cancelled": CancelledGroup, "again": None},
    one_reply=True,
)
DROP_DEAD = Transition(
    PACKAGE,
    "drop_dead",
    keys=DEAD,
    args=DropRepliesArgs,
    item=DropReplyItem,
    item_keys=DEAD_REPLY,
    replies={"dropped": None, "gone": None},
)
READ_MESSAGES = Transition(
    PACKAGE,
    "read_messages",
    item=MessageItem,
    item_keys=REQUEST | RESPONSE,
    replies={"found": Fields, "unknown": None},
)
READ_ACKS = Transition(
    PACKAGE,
    "read_acks",
    item=ReplyAckItem,
    item_keys=ACK,
    replies={"found": AckFound, "unknown": None},
)
