#!lua
-- Guarantee: stores the newest report of a running transaction, publishes the event, and schedules
-- the webhook if the start asked for progress reports.
-- Events: progressed (module transactions)
-- Repeats: safe, but a repeat counts as a further report
-- include: transition
-- include: transactions
local statuses = each_item(function(transaction_id, run, report, state_key)
  local found = redis.call('HMGET', state_key, 'status', 'run', 'label', 'webhook', 'options',
    'hookVersion')
  if not found[1] then return reply.no_state end
  if found[1] ~= 'running' then return reply.not_running end
  if found[2] ~= run then return reply.stale_run end
  redis.call('HSET', state_key, 'progress', report, 'updated', now_text)
  if found[4] and string.find(found[5] or '', 'p', 1, true) then
    redis.call('HSET', state_key, 'hookVersion', (tonumber(found[6]) or 0) + 1, 'hookTries', 0)
    redis.call('ZADD', webhooks_key, now_text, transaction_id)
  end
  record_event('progressed', transaction_id, label(found[3]))
  return reply.reported
end)
write_batch()
return statuses
