#!lua
-- Guarantee: only the newest term appends; what an older one sends changes nothing.
-- KEYS: 3 term counter, 4 list
-- ARGV: 4 term, 5 value
-- Returns: {'appended'} | {'stale_term'}
-- Events: none
-- Repeats: no, a second call appends again
-- include: transition
-- include: fence
if fenced_off(KEYS[3], ARGV[4]) then return { 'stale_term' } end
redis.call('RPUSH', KEYS[4], ARGV[5])
return { 'appended' }
