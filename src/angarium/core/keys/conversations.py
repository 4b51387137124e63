"""Keys of the conversations room. What they begin with follows `conversations.prefix`."""

from __future__ import annotations

from functools import partial

from angarium.core.keys.key import Key, Scope

CONVERSATIONS_PREFIX = "bridge:queue"
_conversations = partial(Key, room="conversations")

CONVERSATION_REQUEST = _conversations(
    f"{CONVERSATIONS_PREFIX}:req:{{request_id}}",
    "hash",
    meaning="A request: its conversation, origin, times, status and number of replies",
    expiry="`conversations.message_ttl`",
)
CONVERSATION_RESPONSE = _conversations(
    f"{CONVERSATIONS_PREFIX}:res:{{response_id}}",
    "hash",
    meaning="A reply: its request, times, status, retries and task",
    expiry="`conversations.awaited_message_ttl`",
)
CONVERSATION_REQUESTS = _conversations(
    f"{CONVERSATIONS_PREFIX}:{{conversation_id}}:req",
    "list",
    meaning="Keys of a conversation's requests, oldest first",
    expiry="`conversations.message_ttl`, once it has replies `conversations.awaited_message_ttl`",
)
CONVERSATION_RESPONSES = _conversations(
    f"{CONVERSATIONS_PREFIX}:{{conversation_id}}",
    "zset",
    meaning="MinMessageInfo of a conversation's replies, in the order in which they leave",
    expiry="`conversations.awaited_message_ttl`",
)
PENDING_MESSAGES = _conversations(
    f"{CONVERSATIONS_PREFIX}:pendingMessages",
    "zset",
    meaning="MinMessageInfo of replies to be tried again, scored by the time from which on",
    expiry="each member by itself; the key goes with its last member",
)
ASYNC_REQUEST = _conversations(
    f"{CONVERSATIONS_PREFIX}:asyncRequest:{{async_request_id}}",
    "string",
    meaning="Id under which a client acknowledges → MinMessageInfo of the reply",
    expiry="`conversations.sent_message_ttl`",
)
CONVERSATIONS_WAKE = _conversations(
    f"{CONVERSATIONS_PREFIX}:wake",
    "channel",
    meaning="Conversations whose next reply may go now; a hint, polling finds them too",
    scope=Scope.KEYSPACE,
)
