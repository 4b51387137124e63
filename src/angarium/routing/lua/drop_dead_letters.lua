#!lua
-- Guarantee: removes a dead letter for good, or changes nothing.
-- Events: dead_dropped, outbound_dead_dropped
-- Repeats: safe, a second call returns unknown
-- include: transition
local replies = each_item(function(message_id, recip_key, reason, entry)
  if redis.call('LREM', dead_key, 1, entry) == 0 then return reply.unknown end
  note(event, message_id, { k = recip_key ~= '' and recip_key or nil, d = reason })
  return reply.dropped
end)
journal_append('routing')
return replies
