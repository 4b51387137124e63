#!lua
-- Guarantee: only the exact term that holds the lock can prolong it; an expired one stays lost.
-- KEYS: 3 lock
-- ARGV: 4 holder, 5 term, 6 lease_ms
-- Returns: {'renewed'} | {'lost'}
-- Events: none, a renewal changes nothing that anybody accounts for
-- Repeats: safe
-- include: transition
if redis.call('GET', KEYS[3]) ~= ARGV[5] .. ':' .. ARGV[4] then return { 'lost' } end
redis.call('PEXPIRE', KEYS[3], ARGV[6])
return { 'renewed' }
