#!lua
-- Guarantee: members that did not renew their entry within ttl_ms are removed before the read.
-- KEYS: 3 members (list), 4 time of renewal (zset)
-- ARGV: 4 ttl_ms after which an entry is removed
-- Returns: the members, in the order in which they joined
-- Events: none
-- Repeats: safe
-- include: transition
-- include: members
return live_members(KEYS[3], KEYS[4], ARGV[4])
