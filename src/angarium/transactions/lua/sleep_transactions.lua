#!lua
-- Guarantee: a running transaction sleeps until its time or its switch. If the switch was set after a
-- node took the transaction, the transaction is queued at once.
-- KEYS: 3 to 5 statistics, 6 processing, 7 sleeping, 8 stem of qOut; per item: state
-- ARGV: 4 notify, 5 work, 6 number of items; per item: id, run, checkpoint, sleep_ms or '',
-- switch or ''
-- Returns: per item 'sleeping' | 'awake' | 'cancelled' the transaction must be cancelled | 'no_state'
-- | 'not_running' | 'stale_run'
-- Events: slept, woken (module transactions)
-- Repeats: safe, a second call with the same run returns 'sleeping' or 'not_running'
-- include: transition
-- include: transactions
local removed, sleeping = {}, {}

local function refusal(found, run)
  if not found[1] then return 'no_state' end
  if found[2] ~= run then return 'stale_run' end
  if found[1] == 'sleeping' then return 'sleeping' end
  if found[1] ~= 'running' then return 'not_running' end
  if found[4] then return 'cancelled' end
end

local statuses = {}
for item = 1, tonumber(ARGV[6]) do
  local at = 2 + 5 * item
  local id, run, switch, state = ARGV[at], ARGV[at + 1], ARGV[at + 4], KEYS[8 + item]
  local found = redis.call('HMGET', state, 'status', 'run', 'label', 'cancel', 'unseen',
    'deadline')
  local status = refusal(found, run)
  if not status then
    local about = label(found[3])
    -- A transaction never sleeps past its deadline. The node that takes it then ends it.
    local wake_ms = math.min(now_ms + (tonumber(ARGV[at + 3]) or math.huge), tonumber(found[6]))
    local already_set = switch ~= '' and string.find(' ' .. (found[5] or '') .. ' ',
      ' ' .. switch .. ' ', 1, true)
    removed[#removed + 1] = id
    record_event('slept', id, about)
    local wake_text = string.format('%.0f', wake_ms)
    redis.call('HSET', state, 'status', already_set and 'queued' or 'sleeping', 'queue', 'out',
      'frame', ARGV[at + 2], 'wake', wake_text, 'switch', switch, 'updated', now_text,
      'more', 1)
    if already_set then
      push(KEYS[8] .. about.group, about.group, id)
      record_event('woken', id, about)
    else
      sleeping[#sleeping + 1] = wake_text
      sleeping[#sleeping + 1] = id
    end
    status = already_set and 'awake' or 'sleeping'
  end
  statuses[item] = status
end
if #removed > 0 then call_many('ZREM', KEYS[6], removed) end
if #sleeping > 0 then call_many('ZADD', KEYS[7], sleeping) end
write_batch()
return statuses
