#!lua
-- Guarantee: a running transaction whose next step this node lacks waits at that step for a node that
-- has it. The results of the finished steps are stored.
-- KEYS: 3 to 5 statistics, 6 processing, 7 stem of qWait; per item: state
-- ARGV: 4 notify, 5 work, 6 number of items; per item: id, run, step, checkpoint, step type
-- Returns: per item 'waits' | 'cancelled' the transaction must be cancelled | 'no_state' |
-- 'not_running' | 'stale_run'
-- Events: advanced, step_awaited (module transactions)
-- Repeats: safe, the second call finds the transaction waiting under its own run and returns 'waits'
-- include: transition
-- include: transactions
-- include: waiting
wait_stem = KEYS[7]
local statuses, removed = {}, {}

local function refusal(found, run)
  if not found[1] then return 'no_state' end
  if found[2] ~= run then return 'stale_run' end
  if found[1] == 'queued' and found[8] then return 'waits' end
  if found[1] ~= 'running' then return 'not_running' end
  if found[4] then return 'cancelled' end
end

for item = 1, tonumber(ARGV[6]) do
  local at = 2 + 5 * item
  local id, run, step, frame, step_type = unpack(ARGV, at, at + 4)
  local state = KEYS[7 + item]
  local found = redis.call('HMGET', state, 'status', 'run', 'label', 'cancel', 'children', 'step',
    'queue', 'waits', 'deadline')
  local status = refusal(found, run)
  if not status then
    local about, queue = label(found[3]), found[7] == 'admin' and 'admin' or 'out'
    redis.call('HSET', state, 'status', 'queued', 'queue', queue, 'frame', frame, 'step', step,
      'more', 1)
    if (found[6] or '0') ~= step then record_event('advanced', id, about, '"a":' .. step) end
    if found[5] then
      redis.call('HDEL', state, 'children', 'childrenLeft', 'childStep')
      for number = 1, tonumber(found[5]) do redis.call('HDEL', state, 'child:' .. number) end
    end
    wait_for(state, id, queue, about, step_type, found[9])
    removed[#removed + 1] = id
    status = 'waits'
  end
  statuses[item] = status
end
if #removed > 0 then call_many('ZREM', KEYS[6], removed) end
write_batch()
return statuses
