#!lua
-- Guarantee: the list has the members that renewed their entry within ttl_ms, and this one.
-- KEYS: 3 members (list), 4 time of renewal (zset)
-- ARGV: 4 member, 5 ttl_ms after which an entry is removed
-- Returns: the members, in the order in which they joined
-- Events: none
-- Repeats: safe
-- include: transition
-- include: members
redis.call('ZADD', KEYS[4], string.format('%.0f', now_ms), ARGV[4])
if not redis.call('LPOS', KEYS[3], ARGV[4]) then redis.call('RPUSH', KEYS[3], ARGV[4]) end
return live_members(KEYS[3], KEYS[4], ARGV[5])
