#!lua
-- Guarantee: each named message in Redis is removed, in any state. If it was moving, the persister
-- deletes its row later. When the last message of an earlier session is acknowledged, the gateway of
-- the current session gets a hint. The reply has the ids that the database may have.
-- Events: delivered, cancelled, expired (module pickup)
-- Repeats: safe, by id
-- include: transition
-- include: queue
local counted = call('EXISTS', charted_key) == 1
local NONE = {} -- a table for each item would cost more than the rest of its reply

local function remove_from_state(keys, id)
  if call('ZREM', keys.sending, id) == 1 then return end
  local sequence, _, dids = header_of(call('HGET', keys.messages, id))
  call('ZREM', keys.pending, id)
  index(keys, 'ZREM', id, sequence, dids)
end

local replies = each_item(function(queue, event, ids, meta_key, messages_key, pending_key, sending_key,
  recipients_key, removed_key, tokens_key)
  if not counted then return reply.not_counted end
  local keys = queue_keys(meta_key, messages_key, pending_key, sending_key, recipients_key,
    removed_key)
  local meta = call('HMGET', keys.meta, 'stored', 'bytes', 'archived', 'moving', 'cleared',
    'grace', 'gateway', 'tokened')
  local archived, moving = tonumber(meta[3]) or 0, tonumber(meta[4]) or 0
  local missing, removed, bytes, was_moving = NONE, 0, 0, 0
  for id in string.gmatch(ids, '%S+') do
    local size = call('HSTRLEN', keys.messages, id)
    if size > 0 then
      remove_from_state(keys, id)
      call('HDEL', keys.messages, id)
      removed, bytes = removed + 1, bytes + size
      if moving > 0 and call('HDEL', moving_key, id) == 1 then
        was_moving = was_moving + 1
        call('SADD', keys.removed, id)
        call('SADD', removed_queues_key, queue)
      end
      if meta[8] then call('HDEL', tokens_key, id) end -- collected: no notification
      note_message(event, id, queue)
    elseif archived > 0 then
      if missing == NONE then missing = {} end
      missing[#missing + 1] = id
    end
  end
  if removed > 0 then
    local stored = (tonumber(meta[1]) or 0) - removed
    call('HSET', keys.meta, 'stored', stored, 'bytes', tonumber(meta[2]) - bytes)
    if was_moving > 0 then call('HINCRBY', keys.meta, 'moving', -was_moving) end
    if stored == 0 then call('ZREM', ages_key, queue) end -- an empty queue has no age
    if stored == 0 and archived == 0 and not meta[7] then delete_if_unused(keys) end
    if meta[6] and meta[7] and not in_grace(keys, meta[6]) then
      call('PUBLISH', hint_channel .. meta[7], 'mail\n' .. queue)
    end
  end
  return reply.removed(removed, meta[5] or '', missing)
end)
journal_append('pickup')
return replies
