"""The transitions of dispatch: keys, arguments, items and replies of its scripts, by name.

A reply `stale` means that a newer term exists: nothing was written, and the caller stops leading.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from angarium.dispatch import keys
from angarium.runtime.keyspace import Key
from angarium.runtime.transition import Transition

PACKAGE = "angarium.dispatch"
PENDING = {
    "pending": keys.MESSAGES_PENDING,
    "payloads": keys.MESSAGES_PAYLOADS,
    "attempts": keys.MESSAGES_ATTEMPTS,
    "queues": keys.MESSAGES_QUEUES,
    "waiting": keys.MESSAGES_WAITING,
}
DEAD = {"dead": keys.MESSAGES_DEAD}
INBOX = {"inbox": keys.MESSAGES_INBOX}
TERM = {"term": keys.LEADER_LOCK_TERM}
CONSUMERS = {"members": keys.CONSUMER_IDS, "seen": keys.CONSUMERS_SEEN}
NAMED_CONSUMERS = {"members": keys.CONSUMER_QUEUES, "seen": keys.CONSUMER_QUEUES_SEEN}
DISPATCHERS = {"members": keys.DISPATCHER_IDS, "seen": keys.DISPATCHERS_SEEN}


class AcceptArgs(NamedTuple):
    term: int
    epoch: int
    ack_timeout_ms: int
    pending_messages_max: int
    pending_full: str
    inbox_messages_max: int
    payload_bytes_max: int
    sent: int
    digests: bytes
    queue: str


class AcceptedItem(NamedTuple):
    message_id: bytes
    payload: bytes


class Accepted(NamedTuple):
    """`spilled`: how many of the others went to the durable intake."""

    accepted: int
    spilled: int


ACCEPT: Transition[Any] = Transition(
    PACKAGE,
    "accept_messages",
    keys={**TERM, **PENDING, "digests": keys.MESSAGES_DIGESTS, **DEAD, **INBOX},
    channels={"messages": keys.MESSAGES_PUBLISHED},
    args=AcceptArgs,
    item=AcceptedItem,
    replies={"accepted": Accepted, "repeated": None, "stale": None},
    one_reply=True,
)


class AcceptInboxArgs(NamedTuple):
    term: int
    ack_timeout_ms: int
    pending_messages_max: int
    payload_bytes_max: int
    reply_bytes_max: int
    sent: int
    partition: int
    partitions: int


class NewId(NamedTuple):
    message_id: bytes


class InboxMessages(NamedTuple):
    """`named` is the number of messages that wait in named queues now."""

    named: int
    messages: list[AcceptedItem]


ACCEPT_INBOX = Transition(
    PACKAGE,
    "accept_inbox",
    keys={**TERM, **PENDING, **INBOX, **DEAD},
    args=AcceptInboxArgs,
    item=NewId,
    replies={"accepted": InboxMessages, "full": None, "stale": None},
    one_reply=True,
)


class ClaimArgs(NamedTuple):
    term: int
    ack_timeout_ms: int
    deliveries_max: int
    payload_bytes_max: int
    reply_bytes_max: int
    messages_max: int
    held_too: bool
    suspects_max: int
    queue: str
    sent_ms: int


class ClaimedMessage(NamedTuple):
    message_id: bytes
    payload: bytes
    delivery: int


class ClaimedBatch(NamedTuple):
    """Messages that were due. `full`: more may be due. `suspects`: how many suspects are due.
    `named`: how many due messages wait in named queues now. `at_ms`: when Redis ran the claim."""

    full: bool
    dead: int
    suspects: int
    named: int
    at_ms: int
    messages: list[ClaimedMessage]


CLAIM: Transition[Any] = Transition(
    PACKAGE,
    "claim_messages",
    keys={**TERM, **PENDING, **DEAD},
    args=ClaimArgs,
    replies={"claimed": ClaimedBatch, "stale": None},
)


class ReturnArgs(NamedTuple):
    term: int
    ack_timeout_ms: int


class UnsentItem(NamedTuple):
    message_id: bytes


class Returned(NamedTuple):
    returned: int


RETURN = Transition(
    PACKAGE,
    "return_messages",
    keys={**TERM, **PENDING},
    args=ReturnArgs,
    item=UnsentItem,
    replies={"returned": Returned, "stale": None},
    one_reply=True,
)


class CompleteArgs(NamedTuple):
    consumer: str
    stream_entries_max: int


class ResultItem(NamedTuple):
    message_id: bytes
    fields: Sequence[bytes]


COMPLETE = Transition(
    PACKAGE,
    "complete_messages",
    keys={**PENDING, "results": keys.MESSAGES_PROCESSED},
    args=CompleteArgs,
    item=ResultItem,
    replies={"completed": None, "duplicate": None},
)


class TrimArgs(NamedTuple):
    keep_ms: int
    entries_max: int


class Trimmed(NamedTuple):
    entries: int


TRIM_RESULTS: Transition[Any] = Transition(
    PACKAGE,
    "trim_results",
    keys={"results": keys.MESSAGES_PROCESSED},
    args=TrimArgs,
    replies={"trimmed": Trimmed},
)


class AckItem(NamedTuple):
    message_id: bytes
    consumer: str


ACKNOWLEDGE = Transition(
    PACKAGE,
    "acknowledge_messages",
    keys=PENDING,
    item=AckItem,
    replies={"acknowledged": None, "unknown": None},
)


class RejectArgs(NamedTuple):
    ack_timeout_ms: int
    tries_max: int
    backoff: str
    delay_ms: int
    delay_ms_max: int


class RejectItem(NamedTuple):
    """`delivery`: see HeldItem. An empty reason gives the message back. `draw`, between 0 and 1,
    is the part of the delay that the message waits. `last`: the reason allows no further try."""

    message_id: bytes
    consumer: str
    delivery: int
    reason: str
    last: bool
    draw: float


REJECT = Transition(
    PACKAGE,
    "reject_messages",
    keys={**PENDING, **DEAD},
    args=RejectArgs,
    item=RejectItem,
    replies={"requeued": None, "dead": None, "lost": None, "unknown": None},
)


class HeldItem(NamedTuple):
    """`delivery` is the number of the delivery, if the caller sent the message, else 0."""

    message_id: bytes
    consumer: str
    delivery: int


RENEW = Transition(
    PACKAGE,
    "renew_messages",
    keys=PENDING,
    item=HeldItem,
    replies={"renewed": None, "lost": None, "unknown": None},
)


class EnqueueArgs(NamedTuple):
    """`sequence` numbers the calls of one writer, so that a repeated call is recognised."""

    writer: str
    sequence: int
    inbox_messages_max: int


class EnqueueItem(NamedTuple):
    message_id: bytes
    payload: bytes
    idempotency_key: str
    expiry_ms: int
    queue: str


class IntakeMessage(NamedTuple):
    message_id: str


class DuplicateMessage(NamedTuple):
    message_id: str


ENQUEUE = Transition(
    PACKAGE,
    "enqueue_messages",
    keys={**INBOX, "writer": keys.MESSAGES_WRITER},
    args=EnqueueArgs,
    item=EnqueueItem,
    item_keys={"once": keys.MESSAGES_ONCE},
    replies={"enqueued": IntakeMessage, "duplicate": DuplicateMessage, "full": None},
    admits=True,
)


class ListQueuesArgs(NamedTuple):
    queues_max: int


class WaitingQueueRow(NamedTuple):
    queue: str
    waiting: int
    oldest_ms: int


class WaitingQueueRows(NamedTuple):
    rows: list[WaitingQueueRow]


LIST_QUEUES: Transition[Any] = Transition(
    PACKAGE,
    "list_queues",
    keys={"waiting": keys.MESSAGES_WAITING},
    args=ListQueuesArgs,
    replies={"queues": WaitingQueueRows},
)


class DeadLetterItem(NamedTuple):
    entry_id: str


class RetryArgs(NamedTuple):
    ack_timeout_ms: int


RETRY_DEAD_LETTERS = Transition(
    PACKAGE,
    "retry_dead_letters",
    keys={**DEAD, **PENDING},
    args=RetryArgs,
    item=DeadLetterItem,
    replies={"retried": None, "unknown": None, "unusable": None},
)
DROP_DEAD_LETTERS = Transition(
    PACKAGE,
    "drop_dead_letters",
    keys=DEAD,
    item=DeadLetterItem,
    replies={"discarded": None, "unknown": None},
)


class ListDeadLettersArgs(NamedTuple):
    after: str
    until_id: str
    letters_max: int
    reply_bytes_max: int
    payload_bytes_max: int


class DeadLetterRow(NamedTuple):
    """`payload_bytes` is -1 if Redis has no payload."""

    entry_id: str
    message_id: str
    deliveries: int
    reasons: bytes
    payload: bytes
    payload_bytes: int
    queue: str


class DeadLetterRows(NamedTuple):
    more: bool
    rows: list[DeadLetterRow]


LIST_DEAD_LETTERS: Transition[Any] = Transition(
    PACKAGE,
    "list_dead_letters",
    keys=DEAD,
    args=ListDeadLettersArgs,
    replies={"letters": DeadLetterRows},
)


class FindEntryArgs(NamedTuple):
    """The range of entries as XRANGE takes it: `-`, `+`, an id, or `(` and an id."""

    message_id: str
    after: str
    until_id: str
    entries_max: int


class FoundEntry(NamedTuple):
    entry_id: str
    fields: list[bytes]


class Searched(NamedTuple):
    """The oldest entry that was read; empty if no entry is left."""

    oldest: str


def _find_entry(stream: Key) -> Transition[Any]:
    found = {"found": FoundEntry, "searched": Searched}
    names = {"stream": stream}
    return Transition(PACKAGE, "find_entry", keys=names, args=FindEntryArgs, replies=found)


FIND_RESULT = _find_entry(keys.MESSAGES_PROCESSED)
FIND_QUEUED = _find_entry(keys.MESSAGES_INBOX)


class ListResultsArgs(NamedTuple):
    results_max: int


class ResultRow(NamedTuple):
    """`fields`: names and values, each cut, joined by zero bytes."""

    entry_id: str
    message_id: bytes
    consumer: bytes
    fields: bytes


class ResultRows(NamedTuple):
    rows: list[ResultRow]


LIST_RESULTS: Transition[Any] = Transition(
    PACKAGE,
    "list_results",
    keys={"results": keys.MESSAGES_PROCESSED},
    args=ListResultsArgs,
    replies={"results": ResultRows},
)


class Marker(NamedTuple):
    epoch: int


PUBLISH_EPOCH_MARKER: Transition[Any] = Transition(
    PACKAGE,
    "publish_epoch_marker",
    keys={"epoch": keys.MESSAGES_EPOCH},
    channels={"marker": keys.MESSAGES_EPOCHS},
    replies={"published": Marker},
)


class CoverArgs(NamedTuple):
    term: int
    covered_epoch: int
    partition: int


class FinishedEpoch(NamedTuple):
    epoch: int


COVER_EPOCHS = Transition(
    PACKAGE,
    "cover_epochs",
    keys={**TERM, "covered": keys.MESSAGES_COVERED},
    channels={"marker": keys.MESSAGES_EPOCHS},
    args=CoverArgs,
    item=FinishedEpoch,
    item_keys={"digests": keys.MESSAGES_DIGESTS},
    replies={"covered": None, "stale": None},
    one_reply=True,
)


class JoinArgs(NamedTuple):
    member: str
    ttl_ms: int


class LeaveArgs(NamedTuple):
    member: str


class ListArgs(NamedTuple):
    ttl_ms: int


class Members(NamedTuple):
    names: list[str]


class MemberTransitions(NamedTuple):
    """The transitions of one list of members."""

    join: Transition[Any]
    leave: Transition[Any]
    show: Transition[Any]


def _members(names: dict[str, Key]) -> MemberTransitions:
    members = {"members": Members}
    left = {"left": None, "unknown": None}
    return MemberTransitions(
        Transition(PACKAGE, "join_members", keys=names, args=JoinArgs, replies=members),
        Transition(PACKAGE, "leave_members", keys=names, args=LeaveArgs, replies=left),
        Transition(PACKAGE, "list_members", keys=names, args=ListArgs, replies=members),
    )


CONSUMER_LIST = _members(CONSUMERS)
NAMED_CONSUMER_LIST = _members(NAMED_CONSUMERS)
DISPATCHER_LIST = _members(DISPATCHERS)
