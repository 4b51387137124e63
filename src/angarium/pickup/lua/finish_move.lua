#!lua
-- Guarantee: messages whose rows are in the database leave Redis and keep their state. A message that
-- was removed during the move is not archived; the persister deletes its row later.
-- KEYS: 3 moving, 4 ages, 5 charted; per item the six of its queue
-- ARGV: 4 threshold_ms, 5 number of items; per item: queue, ids divided by spaces
-- Returns: per item {'moved', count} | {'not_counted'}
-- Events: archived (module pickup)
-- Repeats: safe, by id
-- include: transition
-- include: queue
local counted = call('EXISTS', KEYS[5]) == 1

-- The persister returns to the queue when its oldest message is old enough.
local function set_age(queue, name, stored)
  if stored == 0 then
    call('ZREM', KEYS[4], name)
    return
  end
  local pending = call('ZRANGE', queue.pending, 0, 0, 'WITHSCORES')[2]
  local held = call('ZRANGEBYSCORE', queue.sending, digits(HELD), '+inf', 'WITHSCORES',
    'LIMIT', 0, 1)[2]
  local oldest = math.min(tonumber(pending) or now_ms * 1000,
    held and tonumber(held) - HELD or now_ms * 1000)
  call('ZADD', KEYS[4], digits(math.floor(oldest / 1000)), name)
end

local function finish(queue, name, ids)
  if not counted then return { 'not_counted' } end
  local moved, held = 0, 0
  for id in string.gmatch(ids, '%S+') do
    if call('HDEL', KEYS[3], id) == 1 then
      local sequence, _, dids = header_of(call('HGET', queue.messages, id))
      call('HDEL', queue.messages, id)
      if call('ZREM', queue.pending, id) == 1 then
        index(queue, 'ZREM', id, sequence, dids)
      else
        held = held + 1
      end
      moved = moved + 1
      note_message('archived', id, name)
    end
  end
  if moved > 0 then
    call('HINCRBY', queue.meta, 'moving', -moved)
    call('HINCRBY', queue.meta, 'archived', moved)
    call('HINCRBY', queue.meta, 'moves', moved)
    call('HINCRBY', queue.meta, 'held', held)
    call('HINCRBY', queue.meta, 'stored', -moved)
  end
  set_age(queue, name, field(queue, 'stored'))
  return { 'moved', moved }
end

local replies = {}
for item = 1, tonumber(ARGV[5]) do
  local queue = queue_at(6 + (item - 1) * QUEUE_KEYS)
  replies[item] = finish(queue, ARGV[4 + 2 * item], ARGV[5 + 2 * item])
end
journal_append('pickup')
return replies
