#!lua
-- Guarantee: pending messages are given to one caller, oldest first, within both limits. They are
-- sending until they are removed or their time is over; nobody else gets them meanwhile. The first
-- message may have more bytes than bytes_max.
-- KEYS: 3 charted, 4 due; per item the six of its queue
-- ARGV: 4 sending_ms, 5 bytes_max of the whole call, 6 number of items; per item: queue, recipient
-- DID or '', messages_max, bytes_max, bytes that the first message may have, the number of moves whose
-- archived messages the caller has claimed, or ''
-- Returns: per item {'taken', 1 if bytes_max excluded messages, when they are pending again, id,
-- record, …} | {'archived', moves, 'cleared' of the queue} (archived messages come first) | {'busy'}
-- (call again) | {'not_counted'}
-- Events: sent (module pickup)
-- Repeats: no, a repeat does not return the messages of the first call
-- include: transition
-- include: queue
local due_ms = digits(now_ms + tonumber(ARGV[4]))
local budget, counted = tonumber(ARGV[5]), call('EXISTS', KEYS[3]) == 1

local function oldest(queue, did, count)
  if did == '' then return call('ZRANGE', queue.pending, 0, count - 1) end
  local members = call('ZRANGEBYLEX', queue.recipients, '[' .. did .. ' ',
    '(' .. did .. '!', 'LIMIT', 0, count)
  local ids = {}
  for i, member in ipairs(members) do ids[i] = string.match(member, '(%S+)$') end
  return ids
end

local function take(queue, name, did, messages_max, bytes_max, first_max, seen)
  if not counted then return { 'not_counted' } end
  local meta = call('HMGET', queue.meta, 'archived', 'held', 'moves', 'cleared')
  local moves = meta[3] or '0'
  if (tonumber(meta[1]) or 0) > (tonumber(meta[2]) or 0) and seen ~= moves then
    return { 'archived', moves, meta[4] or '' }
  end
  if budget <= 0 then return { 'busy' } end
  local reply, bytes = { 'taken', 0, due_ms }, 0
  for _, id in ipairs(oldest(queue, did, messages_max)) do
    local record = call('HGET', queue.messages, id)
    local sequence, _, dids = header_of(record)
    bytes = bytes + #record - (string.find(record, '\n', 1, true))
    if bytes > (#reply == 3 and first_max or bytes_max) then
      reply[2] = 1
      break
    end
    budget = budget - #record
    call('ZREM', queue.pending, id)
    index(queue, 'ZREM', id, sequence, dids)
    call('ZADD', queue.sending, due_ms, id)
    reply[#reply + 1] = id
    reply[#reply + 1] = record
    note_message('sent', id, name)
  end
  if #reply > 3 then call('ZADD', KEYS[4], 'LT', due_ms, name) end
  return reply
end

local replies = {}
for item = 1, tonumber(ARGV[6]) do
  local at = 7 + (item - 1) * 6
  local queue = queue_at(5 + (item - 1) * QUEUE_KEYS)
  replies[item] = take(queue, ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]),
    tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), ARGV[at + 5])
end
journal_append('pickup')
return replies
