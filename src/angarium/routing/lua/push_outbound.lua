#!lua
-- Guarantee: queues each message for the deliverer.
-- Events: outbound_accepted; in layout acapy settle_outbound writes it, as for other writers
-- Repeats: no, a second call queues the message again
-- include: transition
local replies = each_item(function(message_id, url, message)
  redis.call('RPUSH', outbound_key, message)
  if layout_name ~= 'acapy' then note('outbound_accepted', message_id, { k = url }) end
  return reply.queued
end)
redis.call('PUBLISH', wake_channel, partition)
journal_append('routing')
return replies
