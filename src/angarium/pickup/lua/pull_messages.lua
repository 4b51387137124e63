#!lua
-- Guarantee: pending messages go to the live session of the given term, oldest first. They are
-- sending while that session lasts; nobody else gets them meanwhile.
-- KEYS: 3 charted; per item the six of its queue
-- ARGV: 4 messages_max and 5 bytes_max of one item, 6 messages that may be sending at a time,
-- 7 bytes_max of the whole call, 8 number of items; per item: queue, term, 1 to send the session's
-- messages again, the number of moves whose archived messages the caller has claimed, or ''
-- Returns: per item {'pulled', 1 if there is more, id, record, …} | {'archived', moves,
-- 'cleared' of the queue} (archived messages come first) | {'window_full'} | {'in_grace'} (an earlier
-- session may still acknowledge older messages) | {'busy'} (call again) | {'lost'} (another term) |
-- {'not_counted'}
-- Events: sent, returned (module pickup)
-- Repeats: no, a repeat does not return the messages of the first call
-- include: transition
-- include: queue
local messages_max, bytes_max, window = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local budget, counted = tonumber(ARGV[7]), call('EXISTS', KEYS[3]) == 1

local function pull(queue, name, term, resend, seen)
  if not counted then return { 'not_counted' } end
  local meta = call('HMGET', queue.meta, 'term', 'archived', 'held', 'moves', 'grace', 'cleared')
  if meta[1] ~= term then return { 'lost' } end
  if resend then
    release(queue, name, digits(HELD), '+inf', -1)
    meta[3] = call('HGET', queue.meta, 'held')
  end
  if in_grace(queue, meta[5]) then return { 'in_grace' } end
  local free = window - call('ZCARD', queue.sending)
  if free <= 0 then return { 'window_full' } end
  local moves = meta[4] or '0'
  if (tonumber(meta[2]) or 0) > (tonumber(meta[3]) or 0) and seen ~= moves then
    return { 'archived', moves, meta[6] or '' }
  end
  if budget <= 0 then return { 'busy' } end
  local ids = call('ZRANGE', queue.pending, 0, math.min(free, messages_max) - 1)
  if #ids == 0 then return { 'pulled', 0 } end
  local records = call('HMGET', queue.messages, unpack(ids))
  local reply, sent, scores, bytes = { 'pulled', 0 }, {}, {}, 0
  for i, id in ipairs(ids) do
    local record = records[i]
    bytes = bytes + #record
    if i > 1 and bytes > bytes_max then break end
    local sequence, _, dids = header_of(record)
    index(queue, 'ZREM', id, sequence, dids)
    scores[2 * i - 1], scores[2 * i] = HELD + sequence, id
    sent[i] = id
    reply[2 * i + 1], reply[2 * i + 2] = id, record
    note_message('sent', id, name)
  end
  call('ZREM', queue.pending, unpack(sent))
  call('ZADD', queue.sending, unpack(scores))
  budget = budget - bytes
  if call('EXISTS', queue.pending) == 1 then reply[2] = 1 end
  return reply
end

local replies = {}
for item = 1, tonumber(ARGV[8]) do
  local at = 9 + (item - 1) * 4
  local queue = queue_at(4 + (item - 1) * QUEUE_KEYS)
  replies[item] = pull(queue, ARGV[at], ARGV[at + 1], ARGV[at + 2] == '1', ARGV[at + 3])
end
journal_append('pickup')
return replies
