#!lua
-- Guarantee: who was silent for too long is taken out of the list before it is read.
-- KEYS: 3 members (list), 4 last heard of (zset)
-- ARGV: 4 ttl_ms after which a silent one is taken out
-- Returns: the members, in the order in which they joined
-- Events: none
-- Repeats: safe
-- include: transition
-- include: members
return live_members(KEYS[3], KEYS[4], ARGV[4])
