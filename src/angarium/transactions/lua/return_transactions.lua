#!lua
-- Guarantee: a node that stops returns its transactions to the front of their queues, at their
-- current step.
-- KEYS: 3 to 5 statistics, 6 processing, 7 to 9 stems of qIn, qOut and qAdmin; per item: state
-- ARGV: 4 notify, 5 work, 6 number of items; per item: id, run
-- Returns: per item 'returned' | 'no_state' | 'not_running' | 'stale_run'
-- Events: returned (module transactions)
-- Repeats: safe, the second call returns 'not_running'
-- include: transition
-- include: transactions
local STEMS = { ['in'] = KEYS[7], out = KEYS[8], admin = KEYS[9] }
local statuses, removed = {}, {}
for item = 1, tonumber(ARGV[6]) do
  local at = 5 + 2 * item
  local id, run, state = ARGV[at], ARGV[at + 1], KEYS[9 + item]
  local found = redis.call('HMGET', state, 'status', 'run', 'label', 'queue')
  if not found[1] then
    statuses[item] = 'no_state'
  elseif found[1] ~= 'running' then
    statuses[item] = 'not_running'
  elseif found[2] ~= run then
    statuses[item] = 'stale_run'
  else
    redis.call('HSET', state, 'status', 'queued', 'updated', now_text)
    local about = label(found[3])
    redis.call('LPUSH', STEMS[found[4] or 'in'] .. about.group, id)
    hints[#hints + 1] = 'work ' .. about.group
    removed[#removed + 1] = id
    record_event('returned', id, about, '"a":' .. run)
    statuses[item] = 'returned'
  end
end
if #removed > 0 then call_many('ZREM', KEYS[6], removed) end
write_batch()
return statuses
