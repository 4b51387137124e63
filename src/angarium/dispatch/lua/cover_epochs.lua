#!lua
-- Guarantee: under the newest term, the record says that all messages before an epoch are accepted,
-- so no takeover compares them again. The recorded epoch only grows.
-- KEYS: 3 term counter, 4 covered (string), then the digests of the covered epochs
-- ARGV: 4 term, 5 epoch, 6 channel of the epoch markers, 7 partition
-- Returns: {'covered'} | {'stale'}
-- Events: none, `accepted` was journalled before
-- Repeats: safe
-- include: transition
-- include: fence
if fenced_off(KEYS[3], ARGV[4]) then return { 'stale' } end
if tonumber(ARGV[5]) > tonumber(redis.call('GET', KEYS[4]) or 0) then
  redis.call('SET', KEYS[4], ARGV[5])
end
for i = 5, #KEYS do redis.call('DEL', KEYS[i]) end
redis.call('PUBLISH', ARGV[6], 'covered ' .. ARGV[7] .. ' ' .. ARGV[5])
return { 'covered' }
