#!lua
-- Guarantee: queues each message for the deliverer, unless as many wait as may wait.
-- Events: outbound_accepted; in layout acapy settle_outbound writes it, as for other writers
-- Repeats: no, a second call queues the message again
-- include: transition
local space = outbound_messages_max - redis.call('ZCARD', retries_key)
local replies = each_item(function(message_id, url, message)
  if redis.call('RPUSH', outbound_key, message) > space then
    redis.call('RPOP', outbound_key)
    return reply.full
  end
  if layout_name ~= 'acapy' then note('outbound_accepted', message_id, { k = url }) end
  return reply.queued
end)
redis.call('PUBLISH', wake_channel, partition)
journal_append('routing')
return replies
