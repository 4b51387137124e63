#!lua
-- Guarantee: a dead letter is no longer listed and can't be rerun; it is archived like any other
-- transaction that has ended.
-- Events: discarded (module transactions)
-- Repeats: safe, the second call returns 'not_dead'
-- include: transition
-- include: transactions
local statuses = each_item(function(transaction_id, state_key)
  local found = redis.call('HMGET', state_key, 'label', 'reason')
  if not found[1] then return reply.no_state end
  if not found[2] or redis.call('ZREM', dead_key, transaction_id) == 0 then return reply.not_dead end
  redis.call('HDEL', state_key, 'frame', 'reason')
  redis.call('ZADD', to_archive_key, string.format('%.0f', now_ms + archive_ms), transaction_id)
  record_event('discarded', transaction_id, label(found[1]))
  return reply.dropped
end)
write_batch()
return statuses
