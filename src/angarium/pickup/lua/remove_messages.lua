#!lua
-- Guarantee: each named message in Redis is removed, in any state. If it was moving, the persister
-- deletes its row later. When the last message of an earlier session is acknowledged, the gateway of
-- the current session gets a hint.
-- KEYS: 3 moving, 4 burials, 5 charted; per item the six of its queue
-- ARGV: 4 hint channel without the gateway, 5 number of items; per item: queue, the event to note,
-- ids divided by spaces
-- Returns: per item {'removed', count, 'cleared' of the queue, id, …} (the ids that the database may
-- have) | {'not_counted'}
-- Events: delivered, cancelled (module pickup)
-- Repeats: safe, by id
-- include: transition
-- include: queue
local counted = call('EXISTS', KEYS[5]) == 1

local function remove_from_state(queue, id)
  if call('ZREM', queue.sending, id) == 1 then return end
  local sequence, _, dids = header_of(call('HGET', queue.messages, id))
  call('ZREM', queue.pending, id)
  index(queue, 'ZREM', id, sequence, dids)
end

local function remove(queue, name, event, ids)
  if not counted then return { 'not_counted' } end
  local meta = call('HMGET', queue.meta, 'stored', 'bytes', 'archived', 'moving', 'cleared',
    'grace', 'gateway')
  local archived, moving = tonumber(meta[3]) or 0, tonumber(meta[4]) or 0
  local reply, removed, bytes, was_moving = { 'removed', 0, meta[5] or '' }, 0, 0, 0
  for id in string.gmatch(ids, '%S+') do
    local size = call('HSTRLEN', queue.messages, id)
    if size > 0 then
      remove_from_state(queue, id)
      call('HDEL', queue.messages, id)
      removed, bytes = removed + 1, bytes + size
      if moving > 0 and call('HDEL', KEYS[3], id) == 1 then
        was_moving = was_moving + 1
        call('SADD', queue.removed, id)
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
    if was_moving > 0 then call('HINCRBY', queue.meta, 'moving', -was_moving) end
    -- The queue keeps its age: a next message usually follows soon. The persister deletes the age.
    if stored == 0 and archived == 0 and not meta[7] then delete_if_unused(queue) end
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
