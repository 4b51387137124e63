#!lua flags=no-writes
-- Guarantee: counts the pending messages of a queue, all or those of one recipient.
-- KEYS: 3 charted, 4 moving; per item the six of its queue
-- ARGV: 4 number of items; per item: queue, recipient DID or ''
-- Returns: per item {'counted', pending} | {'archived', pending in Redis, id, …} for one recipient:
-- the caller adds the rows of the database except these ids, which are sent, removed or moving |
-- {'not_counted'}
-- Events: none
-- Repeats: safe
-- include: transition
-- include: queue
local counted = call('EXISTS', KEYS[3]) == 1

local function count(queue, name, did)
  if not counted then return { 'not_counted' } end
  local archived, held = field(queue, 'archived'), field(queue, 'held')
  if did == '' then
    return { 'counted', call('ZCARD', queue.pending) + archived - held }
  end
  local pending = call('ZLEXCOUNT', queue.recipients, '[' .. did .. ' ', '(' .. did .. '!')
  if archived <= held then return { 'counted', pending } end
  local reply = { 'archived', pending }
  for _, id in ipairs(call('ZRANGE', queue.sending, 0, -1)) do reply[#reply + 1] = id end
  for _, id in ipairs(call('SMEMBERS', queue.removed)) do reply[#reply + 1] = id end
  if field(queue, 'moving') > 0 then
    local moving = call('HGETALL', KEYS[4])
    for i = 1, #moving, 2 do
      if moving[i + 1] == name then reply[#reply + 1] = moving[i] end
    end
  end
  return reply
end

local replies = {}
for item = 1, tonumber(ARGV[4]) do
  replies[item] = count(queue_at(5 + (item - 1) * QUEUE_KEYS), ARGV[3 + 2 * item],
    ARGV[4 + 2 * item])
end
return replies
