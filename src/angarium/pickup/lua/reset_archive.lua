#!lua
-- Guarantee: a queue knows no archived messages any more; those in Redis keep their state. For an
-- operator who replaces a lost database; the persister then counts the rows of the new one.
-- Events: none, nobody knows which messages the lost database had
-- Repeats: safe
-- include: transition
-- include: queue
redis.call('DEL', charted_key)
each_item(function(queue, meta_key, messages_key, pending_key, sending_key,
  recipients_key, removed_key)
  local keys = queue_keys(meta_key, messages_key, pending_key, sending_key, recipients_key,
    removed_key)
  for _, id in ipairs(call('ZRANGE', keys.sending, 0, -1)) do
    if call('HEXISTS', keys.messages, id) == 0 then call('ZREM', keys.sending, id) end
  end
  local bytes = 0
  for _, id in ipairs(call('HKEYS', keys.messages)) do
    bytes = bytes + call('HSTRLEN', keys.messages, id)
  end
  call('DEL', keys.removed)
  call('HSET', keys.meta, 'archived', 0, 'held', 0, 'archived_bytes', 0, 'bytes', bytes)
  begin_epoch(keys)
  delete_if_unused(keys)
end)
return reply.reset
