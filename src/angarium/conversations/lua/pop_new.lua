#!lua
-- Guarantee: a reply that no process holds yet goes to one caller. If the caller does not take it, it
-- is due when its `pending_ttl` ends.
-- KEYS: 3–6 as in the include
-- ARGV: 4–11 as in the include, 12 most to pop
-- Returns: {MinMessageInfo, …}
-- Events: none; taking a reply writes its event
-- Repeats: no, a second call pops other replies
-- include: transition
-- include: conversation
return redis.call('LPOP', KEYS[5], items) or {}
