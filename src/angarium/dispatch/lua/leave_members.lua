#!lua
-- Guarantee: a member that leaves is out of the list at once.
-- KEYS: 3 members (list), 4 last heard of (zset)
-- ARGV: 4 member
-- Returns: {'left'} | {'unknown'}
-- Events: none
-- Repeats: safe, the second call answers 'unknown'
-- include: transition
redis.call('LREM', KEYS[3], 0, ARGV[4])
if redis.call('ZREM', KEYS[4], ARGV[4]) == 1 then return { 'left' } end
return { 'unknown' }
