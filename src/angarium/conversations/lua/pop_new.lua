#!lua
-- Guarantee: a reply that no process holds yet is offered once; if the one it was offered to is
-- not heard of again, it is due when `pending_ttl` is over.
-- KEYS: 3–6 as in the include
-- ARGV: 4–11 as in the include, 12 most to pop
-- Returns: {MinMessageInfo, …}
-- Events: none, the taking of each is noted
-- Repeats: no, a second call pops others
-- include: transition
-- include: conversation
return redis.call('LPOP', KEYS[5], items) or {}
