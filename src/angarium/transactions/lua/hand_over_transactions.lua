#!lua
-- Guarantee: a running transaction whose next step this node lacks, or has no free slot for, waits at
-- that step for a node that can run it. The results of the finished steps are stored.
-- Events: advanced, step_awaited (module transactions)
-- Repeats: safe, the second call finds the transaction waiting under its own run and returns 'waits'
-- include: transition
-- include: transactions
-- include: waiting
local removed = {}

local function refusal(found, run)
  if not found[1] then return reply.no_state end
  if found[2] ~= run then return reply.stale_run end
  if found[1] == 'queued' and found[8] then return reply.waits end
  if found[1] ~= 'running' then return reply.not_running end
  if found[4] then return reply.cancelled end
end

local statuses = each_item(function(transaction_id, run, step, checkpoint, step_type, missing,
    state_key)
  local found = redis.call('HMGET', state_key, 'status', 'run', 'label', 'cancel', 'children', 'step',
    'queue', 'waits', 'deadline')
  local refused = refusal(found, run)
  if refused then return refused end
  local about, queue = label(found[3]), found[7] == 'admin' and 'admin' or 'out'
  redis.call('HSET', state_key, 'status', 'queued', 'queue', queue, 'frame', checkpoint, 'step', step,
    'more', 1)
  if (found[6] or '0') ~= step then
    record_event('advanced', transaction_id, about, '"a":' .. step)
    redis.call('HDEL', state_key, 'faults', 'error')
  end
  if found[5] then
    redis.call('HDEL', state_key, 'children', 'childrenLeft', 'childStep', 'childBytes')
    for number = 1, tonumber(found[5]) do redis.call('HDEL', state_key, 'child:' .. number) end
  end
  wait_for(state_key, transaction_id, queue, about, step_type, found[9], missing)
  removed[#removed + 1] = transaction_id
  return reply.waits
end)
if #removed > 0 then call_many('ZREM', processing_key, removed) end
write_batch()
return statuses
