"""Keys of the conversations module. What they begin with follows `conversations.prefix`."""

from __future__ import annotations

from angarium.runtime.key import Key, Scope

CONVERSATIONS_PREFIX = "bridge:queue"

CONVERSATION_REQUEST = Key(
    f"{CONVERSATIONS_PREFIX}:req:{{request_id}}",
    "hash",
    meaning="A request: its conversation, origin, times, status and number of replies",
    expiry="`conversations.message_ttl`, once it has replies `conversations.awaited_message_ttl`",
)
CONVERSATION_RESPONSE = Key(
    f"{CONVERSATIONS_PREFIX}:res:{{response_id}}",
    "hash",
    meaning="A reply: its request, times, status, retries and task",
    expiry="`conversations.awaited_message_ttl`, once sent `conversations.sent_message_ttl`",
)
CONVERSATION_REQUESTS = Key(
    f"{CONVERSATIONS_PREFIX}:{{conversation_id}}:req",
    "list",
    meaning="Keys of a conversation's requests, oldest first",
    expiry="`conversations.message_ttl`, once it has replies `conversations.awaited_message_ttl`",
)
CONVERSATION_RESPONSES = Key(
    f"{CONVERSATIONS_PREFIX}:{{conversation_id}}",
    "zset",
    meaning="MinMessageInfo of a conversation's replies, in the order in which they leave",
    expiry="`conversations.awaited_message_ttl`",
)
CONVERSATION_ORDER = Key(
    f"{CONVERSATIONS_PREFIX}:{{conversation_id}}:order",
    "hash",
    meaning="The newest position given out, and for each request and reply in the two lists until "
    "when it stands before others",
    expiry="`conversations.message_ttl` + `conversations.awaited_message_ttl`",
)
PENDING_MESSAGES = Key(
    f"{CONVERSATIONS_PREFIX}:pendingMessages",
    "zset",
    meaning="MinMessageInfo of every reply in flight, scored by the time (s) from which on it may "
    "be claimed",
    expiry="each member by itself; the key goes with its last member",
)
OPEN_REQUESTS = Key(
    f"{CONVERSATIONS_PREFIX}:openRequests",
    "zset",
    meaning="MinMessageInfo of requests without a reply, scored by the end of their time (s)",
    expiry="each member by itself; the key goes with its last member",
)
NEW_MESSAGES = Key(
    f"{CONVERSATIONS_PREFIX}:newMessages",
    "list",
    meaning="MinMessageInfo of replies that no process holds yet; a hand-over, pendingMessages is "
    "the truth",
)
WAITING_SENDER = Key(
    f"{CONVERSATIONS_PREFIX}:waitingSender:{{need}}",
    "zset",
    meaning="MinMessageInfo of replies that no process could take for want of their sender, scored "
    "by since when (ms). The need is `n:` and a sender's name, or `o:` and an origin whose sender "
    "or the one named `default` will do; `n` and `o` alone: the needs of that kind. To find them "
    "by, pendingMessages is the truth",
    expiry="`conversations.awaited_message_ttl` after the last came; each member so long after it "
    "came",
)
SENDER_PROCESSES = Key(
    f"{CONVERSATIONS_PREFIX}:senderProcesses",
    "hash",
    meaning="Each process that sends replies → when it last reported, and the names of its "
    "senders; in the first partition only",
    expiry="a field goes 10 s after its last report, with the first report of another process",
)
ASYNC_REQUEST = Key(
    f"{CONVERSATIONS_PREFIX}:asyncRequest:{{async_request_id}}",
    "string",
    meaning="Id under which a client acknowledges → MinMessageInfo of the reply",
    expiry="`conversations.sent_message_ttl`",
)
CONVERSATIONS_WAKE = Key(
    f"{CONVERSATIONS_PREFIX}:wake",
    "channel",
    meaning="Conversations whose next reply may go now; a hint, polling finds them too",
    scope=Scope.KEYSPACE,
)

KEYS: tuple[Key, ...] = tuple(value for value in globals().values() if isinstance(value, Key))
