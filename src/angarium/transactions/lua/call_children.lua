#!lua
-- Guarantee: all children of a step start and their parent sleeps until the last one has ended, or
-- nothing changes.
-- Events: started for each child, called for the parent (module transactions)
-- Repeats: safe, the second call finds the parent sleeping and returns 'called'
-- include: transition
-- include: transactions
local found = redis.call('HMGET', state_key, 'status', 'run', 'label', 'cancel', 'deadline',
  'children')
if not found[1] then return reply.no_state end
if found[2] ~= run then return reply.stale_run end
if found[1] == 'sleeping' and found[6] then return reply.called end
if found[1] ~= 'running' then return reply.not_running end
if found[4] then return reply.cancelled end
local hash = pipelines_stem .. pipeline
local version = redis.call('HGET', hash, 'current')
if not version then return reply.unknown_pipeline end
local fields = redis.call('HMGET', hash, 'group:' .. version, 'timeout:' .. version)
local group, child_ms = fields[1], tonumber(fields[2]) or timeout_ms
-- The deadline of a child is never later than the deadline of its parent.
local deadline = string.format('%.0f', math.min(now_ms + child_ms, tonumber(found[5])))
local about = label(found[3])
local child = label(group .. '|' .. pipeline .. '|' .. about.owner)
local number = 0
each_item(function(data)
  number = number + 1
  local id = transaction_id .. '.' .. step .. '-' .. number
  redis.call('HSET', states_stem .. id, 'status', 'queued', 'label', child.name, 'version', version,
    'data', data, 'created', now_text,
    'deadline', deadline, 'parent', transaction_id, 'more', 1)
  push(in_stem, 'in', child, id)
  record_event('started', id, child)
end)
redis.call('HSET', state_key, 'status', 'sleeping', 'queue', 'out', 'frame', checkpoint,
  'children', number, 'childrenLeft', number, 'childStep', step,
  'wake', found[5], 'switch', '', 'updated', now_text, 'more', 1)
redis.call('ZREM', processing_key, transaction_id)
redis.call('ZADD', sleeping_key, found[5], transaction_id)
record_event('called', transaction_id, about, '"a":' .. number)
write_batch()
return reply.called
