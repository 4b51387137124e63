#!lua
-- Guarantee: all children of a step start and their parent sleeps until the last one has ended, or
-- nothing changes.
-- KEYS: 3 to 5 statistics, 6 processing, 7 sleeping, 8 stem of qIn, 9 to 10 stems of pipelines and
-- states, 11 state of the parent
-- ARGV: 4 notify, 5 work, 6 id of the parent, 7 run, 8 checkpoint, 9 pipeline of the children,
-- 10 timeout_ms, 11 step, 12 number of children; per child: data
-- Returns: 'called' | 'cancelled' the transaction must be cancelled | 'unknown_pipeline' |
-- 'no_state' | 'not_running' | 'stale_run'
-- Events: started for each child, called for the parent (module transactions)
-- Repeats: safe, the second call finds the parent sleeping and returns 'called'
-- include: transition
-- include: transactions
local parent, run, name, step, count = ARGV[6], ARGV[7], ARGV[9], ARGV[11],
  tonumber(ARGV[12])
local found = redis.call('HMGET', KEYS[11], 'status', 'run', 'label', 'cancel', 'deadline',
  'children')
if not found[1] then return 'no_state' end
if found[2] ~= run then return 'stale_run' end
if found[1] == 'sleeping' and found[6] then return 'called' end
if found[1] ~= 'running' then return 'not_running' end
if found[4] then return 'cancelled' end
local hash = KEYS[9] .. name
local version = redis.call('HGET', hash, 'current')
if not version then return 'unknown_pipeline' end
local fields = redis.call('HMGET', hash, 'group:' .. version, 'timeout:' .. version)
local group, timeout_ms = fields[1], tonumber(fields[2] or ARGV[10])
-- The deadline of a child is never later than the deadline of its parent.
local deadline = string.format('%.0f', math.min(now_ms + timeout_ms, tonumber(found[5])))
local about = label(found[3])
local child = label(group .. '|' .. name .. '|' .. about.owner)
for number = 1, count do
  local id = parent .. '.' .. step .. '-' .. number
  redis.call('HSET', KEYS[10] .. id, 'status', 'queued', 'label', child.name, 'version', version,
    'data', ARGV[12 + number], 'created', now_text,
    'deadline', deadline, 'parent', parent, 'more', 1)
  push(KEYS[8] .. group, group, id)
  record_event('started', id, child)
end
redis.call('HSET', KEYS[11], 'status', 'sleeping', 'queue', 'out', 'frame', ARGV[8],
  'children', count, 'childrenLeft', count, 'childStep', step, 'wake', found[5], 'switch', '', 'updated', now_text,
  'more', 1)
redis.call('ZREM', KEYS[6], parent)
redis.call('ZADD', KEYS[7], found[5], parent)
record_event('called', parent, about, '"a":' .. count)
write_batch()
return 'called'
