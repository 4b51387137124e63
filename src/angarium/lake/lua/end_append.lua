#!lua
-- Guarantee: a batch whose lists are empty is committed; it is not appended again.
-- KEYS: 1 writer (hash), 2… staged lists
-- ARGV: 1 batch
-- Returns: {'committed'} | {'already'} | {'left', list} when rows are still staged
-- Events: none
-- Repeats: safe
local committed = redis.call('HGET', KEYS[1], 'committed')
if committed and tonumber(committed) >= tonumber(ARGV[1]) then return { 'already' } end
if redis.call('HGET', KEYS[1], 'batch') ~= ARGV[1] then return { 'left', '' } end
for index = 2, #KEYS do
  if redis.call('LLEN', KEYS[index]) > 0 then return { 'left', KEYS[index] } end
end
redis.call('HSET', KEYS[1], 'committed', ARGV[1])
redis.call('HDEL', KEYS[1], 'batch', 'lists')
return { 'committed' }
