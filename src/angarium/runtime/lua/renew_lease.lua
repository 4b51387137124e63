#!lua
-- Guarantee: only the holder of the current term can extend the lock; an expired lease stays lost.
-- KEYS: 3 lock
-- ARGV: 4 holder, 5 term, 6 lease_ms
-- Returns: {'renewed'} | {'lost'}
-- Events: none, a renewal does not change the holder

-- Repeats: safe
-- include: transition
if redis.call('GET', KEYS[3]) ~= ARGV[5] .. ':' .. ARGV[4] then return { 'lost' } end
redis.call('PEXPIRE', KEYS[3], ARGV[6])
return { 'renewed' }
