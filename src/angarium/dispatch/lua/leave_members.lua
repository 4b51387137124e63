#!lua
-- Guarantee: the member is removed from the list.
-- KEYS: 3 members (list), 4 time of renewal (zset)
-- ARGV: 4 member
-- Returns: {'left'} | {'unknown'}
-- Events: none
-- Repeats: safe, the second call answers 'unknown'
-- include: transition
redis.call('LREM', KEYS[3], 0, ARGV[4])
if redis.call('ZREM', KEYS[4], ARGV[4]) == 1 then return { 'left' } end
return { 'unknown' }
