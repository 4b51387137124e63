#!lua
-- Guarantee: the run that finished a step stores the result before the next step begins.
-- Events: advanced (module transactions)
-- Repeats: safe
-- include: transition
-- include: transactions
local statuses = each_item(function(transaction_id, run, step, checkpoint, state_key)
  local found = redis.call('HMGET', state_key, 'status', 'run', 'label', 'cancel', 'children', 'step',
    'faults')
  if not found[1] then return reply.no_state end
  if found[1] ~= 'running' then return reply.not_running end
  if found[2] ~= run then return reply.stale_run end
  if found[6] ~= step then
    redis.call('HSET', state_key, 'frame', checkpoint, 'step', step, 'updated', now_text, 'more', 1)
    record_event('advanced', transaction_id, label(found[3]), '"a":' .. step)
    if found[7] then redis.call('HDEL', state_key, 'faults', 'error') end
  end
  if found[5] then
    redis.call('HDEL', state_key, 'children', 'childrenLeft', 'childStep', 'childBytes')
    for number = 1, tonumber(found[5]) do redis.call('HDEL', state_key, 'child:' .. number) end
  end
  return found[4] and reply.cancelled or reply.saved
end)
write_batch()
return statuses
