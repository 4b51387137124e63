#!lua
-- Guarantee: a running transaction sleeps until its time or its switch. After a failed try of a step,
-- the number of tries and the error are stored. If the switch was set after a
-- node took the transaction, the transaction is queued at once.
-- Events: slept, step_failed, woken (module transactions)
-- Repeats: safe, a second call with the same run returns 'sleeping' or 'not_running'
-- include: transition
-- include: transactions
local removed, sleeping = {}, {}

local function refusal(found, run)
  if not found[1] then return reply.no_state end
  if found[2] ~= run then return reply.stale_run end
  if found[1] == 'sleeping' then return reply.sleeping end
  if found[1] ~= 'running' then return reply.not_running end
  if found[4] then return reply.cancelled end
end

local statuses = each_item(function(transaction_id, run, checkpoint, sleep_ms, switch, tries, error,
    state_key)
  local found = redis.call('HMGET', state_key, 'status', 'run', 'label', 'cancel', 'unseen',
    'deadline', 'faults')
  local refused = refusal(found, run)
  if refused then return refused end
  local about = label(found[3])
  -- A transaction never sleeps past its deadline. The node that takes it then ends it.
  local wake_ms = math.min(now_ms + (tonumber(sleep_ms) or math.huge), tonumber(found[6]))
  local already_set = switch ~= '' and string.find(' ' .. (found[5] or '') .. ' ',
    ' ' .. switch .. ' ', 1, true)
  removed[#removed + 1] = transaction_id
  if tries == '' then
    record_event('slept', transaction_id, about)
  else
    local _, crashes = read_faults(found[7])
    redis.call('HSET', state_key, 'faults', tries .. ' ' .. crashes, 'error', error)
    record_event('step_failed', transaction_id, about, '"a":' .. tries .. ',"d":' .. brief(error))
  end
  local wake_text = string.format('%.0f', wake_ms)
  redis.call('HSET', state_key, 'status', already_set and 'queued' or 'sleeping', 'queue', 'out',
    'frame', checkpoint, 'wake', wake_text, 'switch', switch, 'updated', now_text, 'more', 1)
  if already_set then
    push(out_stem, 'out', about, transaction_id)
    record_event('woken', transaction_id, about)
    return reply.awake
  end
  sleeping[#sleeping + 1] = wake_text
  sleeping[#sleeping + 1] = transaction_id
  return reply.sleeping
end)
if #removed > 0 then call_many('ZREM', processing_key, removed) end
if #sleeping > 0 then call_many('ZADD', sleeping_key, sleeping) end
write_batch()
return statuses
