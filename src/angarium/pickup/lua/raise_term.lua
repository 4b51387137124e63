#!lua
-- Guarantee: the next term is greater than the given one; the counter never decreases.
-- KEYS: 3 term counter
-- ARGV: 4 term
-- Returns: {'raised'} | {'greater'}
-- Events: none
-- Repeats: safe
-- include: transition
if (tonumber(redis.call('GET', KEYS[3])) or 0) >= tonumber(ARGV[4]) then return { 'greater' } end
redis.call('SET', KEYS[3], ARGV[4])
return { 'raised' }
