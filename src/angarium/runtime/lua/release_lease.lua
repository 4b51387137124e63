#!lua
-- Guarantee: only the holder of the current term can release the lock.

-- KEYS: 3 lock
-- ARGV: 4 holder, 5 term
-- Returns: {'released'} | {'lost'}
-- Events: released (module lease)
-- Repeats: safe, the second call answers 'lost'
-- include: transition
if redis.call('GET', KEYS[3]) ~= ARGV[5] .. ':' .. ARGV[4] then return { 'lost' } end
redis.call('DEL', KEYS[3])
note('released', KEYS[3], { a = tonumber(ARGV[5]), n = ARGV[4] })
journal_append('lease')
return { 'released' }
