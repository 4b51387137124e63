"""Keys of the conversations module. Their names begin with `conversations.prefix`."""

from __future__ import annotations

from angarium.runtime.keyspace import Key, Scope

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
    meaning="MinMessageInfo of a conversation's replies, in the order of sending",
    expiry="`conversations.awaited_message_ttl`",
)
CONVERSATION_ORDER = Key(
    f"{CONVERSATIONS_PREFIX}:{{conversation_id}}:order",
    "hash",
    meaning="The newest position, and for each request and reply in the two lists the time until "
    "which later ones wait for it",
    expiry="`conversations.message_ttl` + `conversations.awaited_message_ttl`",
)
PENDING_MESSAGES = Key(
    f"{CONVERSATIONS_PREFIX}:pendingMessages",
    "zset",
    meaning="MinMessageInfo of every reply in flight, scored by the time (s) from which another "
    "process may claim it",
    expiry="each member separately; the key is removed with its last member",
)
OPEN_REQUESTS = Key(
    f"{CONVERSATIONS_PREFIX}:openRequests",
    "zset",
    meaning="MinMessageInfo of requests without a reply, scored by their expiry (s)",
    expiry="each member separately; the key is removed with its last member",
)
WAITING_SENDER = Key(
    f"{CONVERSATIONS_PREFIX}:waitingSender:{{need}}",
    "zset",
    meaning="MinMessageInfo of replies that no process could take because none has their sender, "
    "scored by the time (ms) when they were added. The need is `n:` and a sender's name, or `o:` "
    "and an origin, which the sender of that origin or the sender `default` serves; `n` and `o` "
    "alone list the needs of that kind. An index only: every reply is also in pendingMessages",
    expiry="`conversations.awaited_message_ttl` after the last addition; each member that long "
    "after its own",
)
DEAD_REPLIES = Key(
    f"{CONVERSATIONS_PREFIX}:deadReplies",
    "zset",
    meaning="MinMessageInfo of replies that were cancelled after a failure, scored by when (ms)",
    expiry="each member `conversations.dead_reply_ttl` after its own failure",
)
DEAD_REPLY = Key(
    f"{CONVERSATIONS_PREFIX}:dead:{{response_id}}",
    "hash",
    meaning="A cancelled reply: its fields, and why it failed",
    expiry="`conversations.dead_reply_ttl`",
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
    meaning="Conversations whose next reply can be sent; a hint, polling finds them too",
    scope=Scope.KEYSPACE,
)

KEYS: tuple[Key, ...] = tuple(value for value in globals().values() if isinstance(value, Key))
