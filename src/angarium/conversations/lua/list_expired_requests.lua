#!lua flags=no-writes
-- Guarantee: lists requests that expired without a reply.
-- KEYS: 3–6 as in the include
-- ARGV: 4–11 as in the include, 12 most to list
-- Returns: {MinMessageInfo, …}
-- Events: none
-- Repeats: safe
-- include: transition
-- include: conversation
return redis.call('ZRANGE', KEYS[4], '-inf', seconds(now_ms), 'BYSCORE', 'LIMIT', 0, items)
