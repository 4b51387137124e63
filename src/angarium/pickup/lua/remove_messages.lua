#!lua
-- Guarantee: each named message that Redis holds is gone for good, whatever its state; if it was
-- on its way to the database, its row is marked to go too. A session that waited for an earlier
-- one's acknowledgements is told when the last is in.
-- KEYS: 3 moving, 4 burials, 5 charted; per item the six of its queue
-- ARGV: 4 hint channel without the gateway, 5 number of items; per item: queue, the event to note,
-- ids divided by spaces
-- Returns: per item {'removed', count, 'cleared' of the queue, id, …}, the ids being those that
-- the database may hold | {'uncharted'}
-- Events: delivered, cancelled (module pickup)
-- Repeats: safe, by id
-- include: transition
-- include: queue
local charted = call('EXISTS', KEYS[5]) == 1

local function unlist(queue, id)
  if call('ZREM', queue.sending, id) == 1 then return end
  local sequence, _, dids = header_of(call('HGET', queue.messages, id))
  call('ZREM', queue.pending, id)
  index(queue, 'ZREM', id, sequence, dids)
end

local function remove(queue, name, event, ids)
  if not charted then return { 'uncharted' } end
  local meta = call('HMGET', queue.meta, 'stored', 'bytes', 'archived', 'moving', 'cleared',
    'grace', 'gateway')
  local archived, moving = tonumber(meta[3]) or 0, tonumber(meta[4]) or 0
  local reply, removed, bytes, stopped = { 'removed', 0, meta[5] or '' }, 0, 0, 0
  for id in string.gmatch(ids, '%S+') do
    local size = call('HSTRLEN', queue.messages, id)
    if size > 0 then
      unlist(queue, id)
      call('HDEL', queue.messages, id)
      removed, bytes = removed + 1, bytes + size
      if moving > 0 and call('HDEL', KEYS[3], id) == 1 then
        stopped = stopped + 1
        call('SADD', queue.buried, id)
        call('SADD', KEYS[4], name)
      end
      note_message(event, id, name)
    elseif archived > 0 then
      reply[#reply + 1] = id
    end
  end
  if removed > 0 then
    local stored = (tonumber(meta[1]) or 0) - removed
    call('HSET', queue.meta, 'stored', stored, 'bytes', tonumber(meta[2]) - bytes)
    if stopped > 0 then call('HINCRBY', queue.meta, 'moving', -stopped) end
    -- Its age stays behind, for the persister to find the queue empty: the next message is near.
    if stored == 0 and archived == 0 and not meta[7] then tidy(queue) end
  end
  if removed > 0 and meta[6] and meta[7] and not in_grace(queue, meta[6]) then
    call('PUBLISH', ARGV[4] .. meta[7], 'mail\n' .. name)
  end
  reply[2] = removed
  return reply
end

local replies = {}
for item = 1, tonumber(ARGV[5]) do
  local at = 6 + (item - 1) * 3
  local queue = queue_at(6 + (item - 1) * QUEUE_KEYS)
  replies[item] = remove(queue, ARGV[at], ARGV[at + 1], ARGV[at + 2])
end
journal_append('pickup')
return replies
