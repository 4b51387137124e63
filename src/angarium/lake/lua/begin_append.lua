#!lua
-- Guarantee: a batch of a writer has one set of staged lists, the first that was named for it; a
-- batch that is repeated with other lists goes on with those.
-- Events: none
-- Repeats: safe
local found = redis.call('HMGET', writer_key, 'committed', 'batch', 'lists')
if found[1] and tonumber(found[1]) >= batch then return reply.already end
if found[2] then
  if tonumber(found[2]) ~= batch then return reply.unfinished(found[2]) end
  return reply.resumed(cmsgpack.unpack(found[3]))
end
local lists = each_item(function(staged_key)
  -- From here on they are part of the batch, and wait as long as it does.
  redis.call('PERSIST', staged_key)
  return staged_key
end)
redis.call('HSET', writer_key, 'batch', batch, 'lists', cmsgpack.pack(lists))
return reply.begun(lists)
