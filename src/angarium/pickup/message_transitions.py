"""The transitions of messages: keys, arguments, items and replies. `PickupStore` calls them."""

from __future__ import annotations

from typing import Any, NamedTuple

from angarium.pickup import keys
from angarium.runtime.transition import Transition

PACKAGE = "angarium.pickup"

# Arguments and items


class AddLimits(NamedTuple):
    """Of a queue; `window` messages may be sending at a time. A push waits `gather_ms` for further
    messages, or `uncollected_ms` for the acknowledgement of a live session."""

    messages_max: int
    bytes_max: int
    window: int
    hint_channel: str
    gather_ms: int
    uncollected_ms: int


class MessageToAdd(NamedTuple):
    """`dids` are divided by spaces; `push` is a hashed token, a space and the notification."""

    queue: str
    id: str
    dids: str
    payload: bytes
    push: bytes
    at_once: bool


class MessageToAddOnce(NamedTuple):
    """`stands_for` is the sender's own id of it. A repeat within `once_ms` adds nothing."""

    queue: str
    message_id: str
    dids: str
    payload: bytes
    stands_for: str
    push: bytes
    once_ms: int


class MessageToFind(NamedTuple):
    queue: str
    id: str


class PullLimits(NamedTuple):
    messages_max: int
    bytes_max: int
    window: int
    call_bytes_max: int


class QueueToPull(NamedTuple):
    queue: str
    term: str
    resend: bool
    seen: str


class TakeArgs(NamedTuple):
    sending_ms: int
    call_bytes_max: int


class QueueToTake(NamedTuple):
    queue: str
    did: str
    messages_max: int
    bytes_max: int
    first_bytes_max: int
    seen: str


class QueueClaimArgs(NamedTuple):
    queue: str
    term: str
    sending_ms: int
    messages_max: int
    bytes_max: int
    first_bytes_max: int
    cleared: str


class ArchivedRow(NamedTuple):
    id: str
    sequence: int
    size: int


class QueueReturnArgs(NamedTuple):
    queue: str
    hint_channel: str


class TakenMessage(NamedTuple):
    id: str
    due_ms: str


class RemoveArgs(NamedTuple):
    hint_channel: str


class MessagesToRemove(NamedTuple):
    """`ids` are divided by spaces; `event` is what the journal notes."""

    queue: str
    event: str
    ids: str


class RemoveArchivedArgs(NamedTuple):
    queue: str
    event: str
    cleared: str
    hint_channel: str


class RowToRemove(NamedTuple):
    id: str
    size: int


class QueueToCount(NamedTuple):
    queue: str
    did: str


class QueueListArgs(NamedTuple):
    queue: str
    did: str
    ids_max: int


class DueArgs(NamedTuple):
    threshold_ms: int
    names_max: int


class ReleaseArgs(NamedTuple):
    messages_max: int
    hint_channel: str


class OneQueue(NamedTuple):
    queue: str


# Replies


class SentAtOnce(NamedTuple):
    term: str
    sequence: int
    received_ms: int


class PulledMessages(NamedTuple):
    """`messages` are pairs of id and record; `more`: further messages are pending."""

    more: bool
    messages: list[bytes]


class ArchivedFirst(NamedTuple):
    """The database has older messages. `cleared` is that of the queue."""

    moves: str
    cleared: str


class TakenNow(NamedTuple):
    """`more`: the byte limit excluded messages. `due_ms`: when they are pending again."""

    more: bool
    due_ms: str
    messages: list[bytes]


class ClaimedRows(NamedTuple):
    """`full`: a limit was reached."""

    full: bool
    due_ms: str
    ids: list[str]


class ReturnedMessages(NamedTuple):
    returned: int


class RemovedMessages(NamedTuple):
    """The database may have the messages with the ids in `missing`."""

    removed: int
    cleared: str
    missing: list[str]


class RemovedRows(NamedTuple):
    removed: int


class CountedMessages(NamedTuple):
    pending: int


class CountedInRedis(NamedTuple):
    """The caller adds the recipient's rows of the database, except those in `without`."""

    pending: int
    without: list[str]


class ListedMessages(NamedTuple):
    archived: int
    ids: list[str]


class DueWork(NamedTuple):
    """What the periodic work of a partition has to do now."""

    dead_gateways: list[str]
    to_release: list[str]
    to_archive: list[str]
    with_removed_rows: list[str]


class ReleasedMessages(NamedTuple):
    released: int


class ShownQueue(NamedTuple):
    """`oldest` is a sequence, or ''. `meta` are names and values of the queue's hash."""

    pending: int
    sending: int
    oldest: str
    live: bool
    meta: list[bytes]


# Transitions

_WITH_TOKENS = {**keys.QUEUE, "tokens": keys.PICKUP_TOKENS}
_ADD_KEYS = {
    "gateways": keys.PICKUP_GATEWAYS,
    "ages": keys.PICKUP_AGES,
    "charted": keys.PICKUP_CHARTED,
    "pushes_due": keys.PICKUP_PUSHES_DUE,
    "dids": keys.PICKUP_DIDS,
    "did_sessions": keys.PICKUP_DID_SESSIONS,
}

ADD = Transition(
    PACKAGE,
    "add_messages",
    keys=_ADD_KEYS,
    args=AddLimits,
    item=MessageToAdd,
    item_keys=_WITH_TOKENS,
    replies={
        "sent": SentAtOnce, "here": None, "elsewhere": None, "offline": None, "queue_full": None
    },
    admits=True,
)  # fmt: skip
ADD_DEDUPLICATED = Transition(
    PACKAGE,
    "add_deduplicated",
    keys=_ADD_KEYS,
    args=AddLimits,
    item=MessageToAddOnce,
    item_keys={**_WITH_TOKENS, "once": keys.PICKUP_ONCE},
    replies={
        "live": None, "offline": None, "queue_full": None, "duplicate": None, "removed": None,
        "not_in_redis": None,
    },
    admits=True,
)  # fmt: skip
FIND = Transition(
    PACKAGE,
    "find_messages",
    item=MessageToFind,
    item_keys={"messages": keys.PICKUP_MESSAGES},
    replies={"found": None, "missing": None},
)
PULL = Transition(
    PACKAGE,
    "pull_messages",
    keys={"charted": keys.PICKUP_CHARTED},
    args=PullLimits,
    item=QueueToPull,
    item_keys=keys.QUEUE,
    replies={
        "pulled": PulledMessages, "archived": ArchivedFirst, "window_full": None, "in_grace": None,
        "busy": None, "lost": None, "not_counted": None,
    },
)  # fmt: skip
TAKE = Transition(
    PACKAGE,
    "take_messages",
    keys={"charted": keys.PICKUP_CHARTED, "due": keys.PICKUP_DUE},
    args=TakeArgs,
    item=QueueToTake,
    item_keys=keys.QUEUE,
    replies={
        "taken": TakenNow, "archived": ArchivedFirst, "in_grace": None, "busy": None,
        "not_counted": None,
    },
)  # fmt: skip
CLAIM = Transition(
    PACKAGE,
    "claim_archived",
    keys={"due": keys.PICKUP_DUE, **keys.QUEUE},
    args=QueueClaimArgs,
    item=ArchivedRow,
    replies={"claimed": ClaimedRows, "again": None, "lost": None},
    one_reply=True,
)
RETURN = Transition(
    PACKAGE,
    "return_messages",
    keys={"gateways": keys.PICKUP_GATEWAYS, **keys.QUEUE},
    args=QueueReturnArgs,
    item=TakenMessage,
    replies={"returned": ReturnedMessages},
    one_reply=True,
)
REMOVE = Transition(
    PACKAGE,
    "remove_messages",
    keys={
        "moving": keys.PICKUP_MOVING, "removed_queues": keys.PICKUP_REMOVED_QUEUES,
        "charted": keys.PICKUP_CHARTED, "ages": keys.PICKUP_AGES,
    },
    args=RemoveArgs,
    item=MessagesToRemove,
    item_keys=_WITH_TOKENS,
    replies={"removed": RemovedMessages, "not_counted": None},
)  # fmt: skip
REMOVE_ARCHIVED = Transition(
    PACKAGE,
    "remove_archived",
    keys={"removed_queues": keys.PICKUP_REMOVED_QUEUES, **_WITH_TOKENS},
    args=RemoveArchivedArgs,
    item=RowToRemove,
    replies={"removed": RemovedRows, "again": None},
    one_reply=True,
)
COUNT = Transition(
    PACKAGE,
    "count_messages",
    keys={"charted": keys.PICKUP_CHARTED, "moving": keys.PICKUP_MOVING},
    item=QueueToCount,
    item_keys=keys.QUEUE,
    replies={"counted": CountedMessages, "archived": CountedInRedis, "not_counted": None},
)
LIST: Transition[Any] = Transition(
    PACKAGE,
    "list_messages",
    keys={"charted": keys.PICKUP_CHARTED, **keys.QUEUE},
    args=QueueListArgs,
    replies={"listed": ListedMessages, "not_counted": None},
)
LIST_DUE: Transition[Any] = Transition(
    PACKAGE,
    "list_due",
    keys={
        "gateways": keys.PICKUP_GATEWAYS, "due": keys.PICKUP_DUE, "ages": keys.PICKUP_AGES,
        "removed_queues": keys.PICKUP_REMOVED_QUEUES,
    },
    args=DueArgs,
    replies={"due": DueWork},
)  # fmt: skip
RELEASE = Transition(
    PACKAGE,
    "release_messages",
    keys={"gateways": keys.PICKUP_GATEWAYS, "due": keys.PICKUP_DUE},
    args=ReleaseArgs,
    item=OneQueue,
    item_keys=keys.QUEUE,
    replies={"released": ReleasedMessages},
)
SHOW: Transition[Any] = Transition(
    PACKAGE,
    "show_queue",
    keys={
        "gateways": keys.PICKUP_GATEWAYS, "meta": keys.PICKUP_QUEUE,
        "pending": keys.PICKUP_PENDING, "sending": keys.PICKUP_SENDING,
    },
    args=OneQueue,
    replies={"shown": ShownQueue},
)  # fmt: skip
