#!lua
-- Guarantee: the run that finished a step stores the result before the next step begins.
-- KEYS: 3 to 5 statistics; per item: state
-- ARGV: 4 notify, 5 work, 6 number of items; per item: id, run, step, checkpoint
-- Returns: per item 'saved' | 'cancelled' the transaction must be cancelled | 'no_state' |
-- 'not_running' | 'stale_run'
-- Events: advanced (module transactions)
-- Repeats: safe
-- include: transition
-- include: transactions
local statuses = {}
for item = 1, tonumber(ARGV[6]) do
  local at = 3 + 4 * item
  local id, run, step, state = ARGV[at], ARGV[at + 1], ARGV[at + 2], KEYS[5 + item]
  local found = redis.call('HMGET', state, 'status', 'run', 'label', 'cancel', 'children', 'step')
  if not found[1] then
    statuses[item] = 'no_state'
  elseif found[1] ~= 'running' then
    statuses[item] = 'not_running'
  elseif found[2] ~= run then
    statuses[item] = 'stale_run'
  else
    if found[6] ~= step then
      redis.call('HSET', state, 'frame', ARGV[at + 3], 'step', step, 'updated', now_text, 'more', 1)
      record_event('advanced', id, label(found[3]), '"a":' .. step)
    end
    if found[5] then
      redis.call('HDEL', state, 'children', 'childrenLeft', 'childStep')
      for number = 1, tonumber(found[5]) do redis.call('HDEL', state, 'child:' .. number) end
    end
    statuses[item] = found[4] and 'cancelled' or 'saved'
  end
end
write_batch()
return statuses
