#!lua
-- Guarantee: a batch whose lists are empty is committed; it is not appended again.
-- Events: none
-- Repeats: safe
local committed = redis.call('HGET', writer_key, 'committed')
if committed and tonumber(committed) >= batch then return reply.already end
if tonumber(redis.call('HGET', writer_key, 'batch') or -1) ~= batch then return reply.left('') end
local left
each_item(function(staged_key)
  if redis.call('LLEN', staged_key) > 0 then left = staged_key end
end)
if left then return reply.left(left) end
redis.call('HSET', writer_key, 'committed', batch)
redis.call('HDEL', writer_key, 'batch', 'lists')
return reply.committed
