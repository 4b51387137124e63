#!lua flags=allow-oom
-- Guarantee: a message that its holder rejects is due again after the delay, with the reason
-- stored; after its last try it is a dead letter. Without a reason the message is given back: it
-- is due at once, and the delivery is not counted. If another worker has the message, or nobody,
-- nothing changes ('lost').
-- Events: rejected, returned, dead
-- Repeats: safe, the second call answers 'lost' or 'unknown'
-- include: transition
-- include: attempts
-- include: queues
-- include: dead_letter
local function requeue(message_id, value, wait_ms)
  redis.call('HSET', attempts_key, message_id, value)
  local score = pending_score(message_id, now_ms - ack_timeout_ms + wait_ms)
  redis.call('ZADD', pending_key, score, message_id)
  return reply.requeued
end
local factors = {
  exponential = function(failures) return 2 ^ (failures - 1) end,
  linear = function(failures) return failures end,
  fixed = function() return 1 end,
}
local replies = each_item(function(message_id, consumer, delivery, reason, last, draw)
  if not redis.call('ZSCORE', pending_key, message_id) then return reply.unknown end
  local value = redis.call('HGET', attempts_key, message_id)
  if not is_holder(value, consumer, delivery) then return reply.lost end
  local deliveries, _, reasons = read_attempts(value)
  if reason == '' then
    note('returned', message_id)
    return requeue(message_id, deliveries - 1 .. reasons, 0)
  end
  value = deliveries .. add_reason(reasons, reason)
  note('rejected', message_id, { a = deliveries, d = reason })
  if last or deliveries >= tries_max then
    redis.call('HSET', attempts_key, message_id, value)
    dead_letter(message_id)
    note('dead', message_id, { a = deliveries })
    return reply.dead
  end
  local factor = factors[backoff](math.min(deliveries, 60))
  return requeue(message_id, value, math.floor(math.min(delay_ms * factor, delay_ms_max) * draw))
end)
journal_append('dispatch')
return replies
