#!lua
-- Guarantee: under the newest term, all messages before an epoch are known to be accepted, so
-- nobody compares them again; the mark only moves forward.
-- KEYS: 3 term counter, 4 covered (string), then the digests of epochs that are covered
-- ARGV: 4 term, 5 epoch, 6 channel of the marks, 7 partition
-- Returns: {'covered'} | {'stale'}
-- Events: none, the messages were journalled when they were accepted
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
