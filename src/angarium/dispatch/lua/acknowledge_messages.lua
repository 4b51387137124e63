#!lua flags=allow-oom
-- Guarantee: a message whose result a third-party worker stored itself is no longer pending. An
-- id that never was, or is finished, is 'unknown'.
-- Events: acknowledged
-- Repeats: safe, the second call answers 'unknown'
-- include: transition
-- include: queues
local replies = each_item(function(message_id, consumer)
  if redis.call('ZREM', pending_key, message_id) == 0 then return reply.unknown end
  redis.call('HDEL', payloads_key, message_id)
  redis.call('HDEL', attempts_key, message_id)
  leave_queue(message_id)
  note('acknowledged', message_id, { n = consumer })
  return reply.acknowledged
end)
journal_append('dispatch')
return replies
