#!lua
-- Guarantee: a node that stops returns its transactions to the front of their queues, at their
-- current step.
-- Events: returned (module transactions)
-- Repeats: safe, the second call returns 'not_running'
-- include: transition
-- include: transactions
local STEMS, removed = { ['in'] = in_stem, out = out_stem, admin = admin_stem }, {}
local statuses = each_item(function(transaction_id, run, state_key)
  local found = redis.call('HMGET', state_key, 'status', 'run', 'label', 'queue')
  if not found[1] then return reply.no_state end
  if found[1] ~= 'running' then return reply.not_running end
  if found[2] ~= run then return reply.stale_run end
  redis.call('HSET', state_key, 'status', 'queued', 'updated', now_text)
  local about = label(found[3])
  local queue = found[4] or 'in'
  push_front(STEMS[queue], queue, about, transaction_id)
  removed[#removed + 1] = transaction_id
  record_event('returned', transaction_id, about, '"a":' .. run)
  return reply.returned
end)
if #removed > 0 then call_many('ZREM', processing_key, removed) end
write_batch()
return statuses
