#!lua
-- Guarantee: a message with an id of the caller is stored once, pending behind all earlier ones, or
-- its queue is full and nothing is stored. The gateway of the live session gets a hint. A repeat
-- within once_ms stores nothing, even if the message was removed meanwhile. If the queue has no live
-- session, the push notification is scheduled.
-- KEYS: 3 gateways, 4 ages, 5 pushes due, 6 pushes; per item the six of its queue, then once
-- ARGV: 4 messages_max and 5 bytes_max of a queue, 6 hint channel without the gateway, 7 once_ms,
-- 8 number of items; per item: queue, id, recipient DIDs divided by spaces, payload, the sender's own
-- id of it, hashed push token and notification divided by a space, or ''
-- Returns: per item 'live' | 'offline' | 'queue_full' | 'duplicate' (it is in the queue, or in the
-- database) | 'removed' (it was added and removed before)
-- Events: accepted, with the sender's own id as the detail; push_scheduled (module pickup)
-- Repeats: safe, by id
-- include: transition
-- include: queue
local messages_max, bytes_max, once_ms = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[7]
local statuses, hints, known = {}, {}, {}

local function repeat_status(queue, id)
  if call('HEXISTS', queue.messages, id) == 1 then return 'duplicate' end
  if call('SISMEMBER', queue.removed, id) == 1 then return 'removed' end
  return field(queue, 'archived') > 0 and 'duplicate' or 'removed'
end

local function add(queue, once, name, id, dids, payload, stands_for, push)
  if call('EXISTS', once) == 1 then return repeat_status(queue, id) end
  local meta = call('HMGET', queue.meta, 'sequence', 'stored', 'bytes', 'archived', 'gateway')
  local stored, bytes = tonumber(meta[2]) or 0, tonumber(meta[3]) or 0
  local sequence = next_sequence(meta[1])
  local record = digits(sequence) .. ' ' .. digits(now_ms) .. ' ' .. dids .. '\n' .. payload
  if stored + (tonumber(meta[4]) or 0) >= messages_max or bytes + #record > bytes_max then
    return 'queue_full'
  end
  if not meta[1] then begin_epoch(queue) end
  call('SET', once, 1, 'PX', once_ms)
  call('HSET', queue.messages, id, record)
  call('HSET', queue.meta, 'sequence', sequence, 'stored', stored + 1, 'bytes', bytes + #record)
  if stored == 0 then call('ZADD', KEYS[4], 'NX', now_ms, name) end
  call('ZADD', queue.pending, sequence, id)
  index(queue, 'ZADD', id, sequence, dids)
  note('accepted', id, { k = name, d = stands_for })
  local gateway = meta[5]
  if not gateway or not alive(KEYS[3], gateway, known) then
    if push ~= '' then schedule_push(KEYS[5], KEYS[6], push, id) end
    return 'offline'
  end
  hints[gateway] = (hints[gateway] or 'mail') .. '\n' .. name
  return 'live'
end

for item = 1, tonumber(ARGV[8]) do
  local k, a = 7 + (item - 1) * (QUEUE_KEYS + 1), 9 + (item - 1) * 6
  statuses[item] = add(queue_at(k), KEYS[k + QUEUE_KEYS], ARGV[a], ARGV[a + 1], ARGV[a + 2],
    ARGV[a + 3], ARGV[a + 4], ARGV[a + 5])
end
for gateway, hint in pairs(hints) do call('PUBLISH', ARGV[6] .. gateway, hint) end
journal_append('pickup')
return statuses
