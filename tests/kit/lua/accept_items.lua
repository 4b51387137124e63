#!lua
-- Guarantee: an id is accepted once; its payload and its place in the order are stored together.
-- Events: accepted (module sample)
-- Repeats: safe, idempotent by id
-- include: transition
local replies = each_item(function(id, payload)
  if redis.call('HSETNX', payloads_key, id, payload) == 0 then return reply.duplicate end
  redis.call('RPUSH', order_key, id)
  note('accepted', id)
  return reply.accepted
end)
journal_append('sample')
return replies
