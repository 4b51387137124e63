#!lua flags=no-writes
-- Guarantee: counts the pending messages of a queue, all or those of one recipient. 'archived', for
-- one recipient: the caller adds the rows of the database, except the ids of messages that are sent,
-- removed or moving.
-- Events: none
-- Repeats: safe
-- include: transition
-- include: queue
local counted = call('EXISTS', charted_key) == 1

-- The ids of messages with rows that are not pending in the database.
local function not_pending(keys, queue)
  local ids = call('ZRANGE', keys.sending, 0, -1)
  for _, id in ipairs(call('SMEMBERS', keys.removed)) do ids[#ids + 1] = id end
  if field(keys, 'moving') > 0 then
    local moving = call('HGETALL', moving_key)
    for i = 1, #moving, 2 do
      if moving[i + 1] == queue then ids[#ids + 1] = moving[i] end
    end
  end
  return ids
end

return each_item(function(queue, did, meta_key, messages_key, pending_key, sending_key,
  recipients_key, removed_key)
  if not counted then return reply.not_counted end
  local keys = queue_keys(meta_key, messages_key, pending_key, sending_key, recipients_key,
    removed_key)
  local archived, held = field(keys, 'archived'), field(keys, 'held')
  if did == '' then return reply.counted(call('ZCARD', keys.pending) + archived - held) end
  local pending = call('ZLEXCOUNT', keys.recipients, '[' .. did .. ' ', '(' .. did .. '!')
  if archived <= held then return reply.counted(pending) end
  return reply.archived(pending, not_pending(keys, queue))
end)
