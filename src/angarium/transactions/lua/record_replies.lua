#!lua
-- Guarantee: records the first response with a final status that was written to a client. Removes the
-- webhook if the start asked for that.
-- Events: notified, webhook_cancelled (module transactions)
-- Repeats: safe, the second call returns 'known'
-- include: transition
-- include: transactions
local statuses = each_item(function(transaction_id, notified_ms, state_key)
  local found = redis.call('HMGET', state_key, 'status', 'label', 'notified', 'options')
  if not found[1] then return reply.no_state end
  if not FINAL[found[1]] then return reply.not_ended end
  local about = label(found[2])
  if not found[3] then
    redis.call('HSET', state_key, 'notified', notified_ms)
    record_event('notified', transaction_id, about)
  end
  if string.find(found[4] or '', 'c', 1, true)
    and redis.call('ZREM', webhooks_key, transaction_id) == 1 then
    record_event('webhook_cancelled', transaction_id, about)
  end
  return found[3] and reply.known or reply.recorded
end)
write_batch()
return statuses
