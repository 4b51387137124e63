#!lua
-- Guarantee: the first process records the layout of the keys; all others must use the same.
-- Events: none, the journal does not exist yet
-- Repeats: safe
local found = redis.call('HMGET', layout_key, 'layout_version', 'partitions')
if not found[1] then
  redis.call('HSET', layout_key, 'layout_version', layout_version, 'partitions', partitions,
    'prefix', prefix)
  return reply.created
end
if tonumber(found[1]) == layout_version and tonumber(found[2]) == partitions then
  return reply.agreed
end
return reply.differs(found[1], found[2])
