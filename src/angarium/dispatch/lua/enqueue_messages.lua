#!lua
-- Guarantee: after the reply a message is in the durable intake. An idempotency key adds one
-- message, however often it is sent. A repeated call of the same writer adds nothing: Redis
-- remembers its last calls for ten minutes. An intake without space for a whole call takes
-- nothing of it ('full').
-- Events: enqueued
-- Repeats: safe, `sequence` identifies the call
-- include: transition
local CALLS_MAX = 64
local repeated = redis.call('SISMEMBER', writer_key, sequence) == 1
local full = item_count > inbox_messages_max - redis.call('XLEN', inbox_key)
if not repeated and not full then
  redis.call('SADD', writer_key, sequence)
  redis.call('SREM', writer_key, sequence - CALLS_MAX)
  redis.call('PEXPIRE', writer_key, 600000)
end
local replies = each_item(function(message_id, payload, idempotency_key, expiry_ms, queue, once_key)
  if idempotency_key ~= '' then
    local first = redis.call('GET', once_key)
    if first then return (first == message_id and reply.enqueued or reply.duplicate)(first) end
  elseif repeated then
    return reply.enqueued(message_id)
  end
  if full then return reply.full end
  if idempotency_key ~= '' then redis.call('SET', once_key, message_id, 'PX', expiry_ms) end
  if queue == '' then
    redis.call('XADD', inbox_key, '*', 'message_id', message_id, 'payload', payload)
  else
    redis.call('XADD', inbox_key, '*', 'message_id', message_id, 'payload', payload, 'queue', queue)
  end
  note('enqueued', message_id)
  return reply.enqueued(message_id)
end)
journal_append('dispatch')
return replies
