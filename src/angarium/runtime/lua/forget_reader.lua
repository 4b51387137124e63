#!lua
-- Guarantee: the journal keeps no entries for this reader any more.

-- KEYS: 3 readers
-- ARGV: 4 reader
-- Returns: {'forgotten'} | {'unknown'}
-- Events: none
-- Repeats: safe, the second call answers 'unknown'
-- include: transition
if redis.call('HDEL', KEYS[3], ARGV[4]) == 1 then return { 'forgotten' } end
return { 'unknown' }
