#!lua
-- Guarantee: a dead letter becomes pending again, once, with no delivery counted. Without a
-- payload in Redis it is 'unusable'.
-- Events: retried
-- Repeats: safe, the second call answers 'unknown'
-- include: transition
-- include: queues
-- include: dead_letter_entry
local replies = each_item(function(entry_id)
  local entry = dead_letter_entry(entry_id)
  if not entry then return reply.unknown end
  local fields = {}
  for f = 1, #entry[2], 2 do fields[entry[2][f]] = entry[2][f + 1] end
  if not fields.payload then return reply.unusable end
  local message_id = fields.message_id
  redis.call('HSET', payloads_key, message_id, fields.payload)
  redis.call('HSET', attempts_key, message_id, 0)
  if fields.queue then
    wait_in_queue(message_id, fields.queue)
  else
    redis.call('ZADD', pending_key, string.format('%.0f', now_ms - ack_timeout_ms), message_id)
  end
  redis.call('XDEL', dead_key, entry[1])
  note('retried', message_id)
  return reply.retried
end)
journal_append('dispatch')
return replies
