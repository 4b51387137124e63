#!lua flags=allow-oom
-- Guarantee: under the newest term, messages that the leader accepted and never sent are due at
-- once, and the delivery is not counted.
-- Events: returned
-- Repeats: no, the next leader may have sent them
-- include: transition
-- include: fence
-- include: attempts
-- include: queues
if fenced_off(term_key, term) then return reply.stale end
local returned = 0
each_item(function(message_id)
  if not redis.call('ZSCORE', pending_key, message_id) then return end
  local deliveries, _, reasons = read_attempts(redis.call('HGET', attempts_key, message_id))
  redis.call('HSET', attempts_key, message_id, math.max(0, deliveries - 1) .. reasons)
  redis.call('ZADD', pending_key, pending_score(message_id, now_ms - ack_timeout_ms), message_id)
  note('returned', message_id)
  returned = returned + 1
end)
journal_append('dispatch')
return reply.returned(returned)
