#!lua
-- Guarantee: messages whose rows are in the database leave Redis and keep their state. A message that
-- was removed during the move is not archived; the persister deletes its row later.
-- Events: archived (module pickup)
-- Repeats: safe, by id
-- include: transition
-- include: queue
local counted = call('EXISTS', charted_key) == 1

-- The persister returns to the queue when its oldest message is old enough.
local function set_age(keys, queue, stored)
  if stored == 0 then
    call('ZREM', ages_key, queue)
    return
  end
  local pending = call('ZRANGE', keys.pending, 0, 0, 'WITHSCORES')[2]
  local held = call('ZRANGEBYSCORE', keys.sending, digits(HELD), '+inf', 'WITHSCORES',
    'LIMIT', 0, 1)[2]
  local oldest = math.min(tonumber(pending) or now_ms * 1000,
    held and tonumber(held) - HELD or now_ms * 1000)
  call('ZADD', ages_key, digits(math.floor(oldest / 1000)), queue)
end

local replies = each_item(function(queue, ids, meta_key, messages_key, pending_key, sending_key,
  recipients_key, removed_key)
  if not counted then return reply.not_counted end
  local keys = queue_keys(meta_key, messages_key, pending_key, sending_key, recipients_key,
    removed_key)
  local moved, held = 0, 0
  for id in string.gmatch(ids, '%S+') do
    if call('HDEL', moving_key, id) == 1 then
      local sequence, _, dids = header_of(call('HGET', keys.messages, id))
      call('HDEL', keys.messages, id)
      if call('ZREM', keys.pending, id) == 1 then
        index(keys, 'ZREM', id, sequence, dids)
      else
        held = held + 1
      end
      moved = moved + 1
      note_message('archived', id, queue)
    end
  end
  if moved > 0 then
    call('HINCRBY', keys.meta, 'moving', -moved)
    call('HINCRBY', keys.meta, 'archived', moved)
    call('HINCRBY', keys.meta, 'moves', moved)
    call('HINCRBY', keys.meta, 'held', held)
    call('HINCRBY', keys.meta, 'stored', -moved)
  end
  set_age(keys, queue, field(keys, 'stored'))
  return reply.moved(moved)
end)
journal_append('pickup')
return replies
