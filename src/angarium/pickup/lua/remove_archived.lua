#!lua
-- Guarantee: archived messages are removed for every reader at once; the persister deletes their
-- rows later. The caller read the rows when the queue's 'cleared' was as given. If it has changed,
-- the caller has to read them again, or one message could be removed twice.
-- Events: delivered, cancelled, expired (module pickup)
-- Repeats: safe, by id
-- include: transition
-- include: queue
local keys = queue_keys(meta_key, messages_key, pending_key, sending_key, recipients_key,
  removed_key)
if (call('HGET', keys.meta, 'cleared') or '') ~= cleared then return reply.again end
local removed, held, bytes = 0, 0, 0
local tokened = call('HGET', keys.meta, 'tokened')
each_item(function(id, size)
  if call('HEXISTS', keys.messages, id) == 0 and call('SADD', keys.removed, id) == 1 then
    removed, bytes = removed + 1, bytes + size
    held = held + call('ZREM', keys.sending, id)
    if tokened then call('HDEL', tokens_key, id) end -- collected: no notification
    note_message(event, id, queue)
  end
end)
if removed > 0 then
  call('SADD', removed_queues_key, queue)
  call('HINCRBY', keys.meta, 'archived', -removed)
  call('HINCRBY', keys.meta, 'held', -held)
  call('HINCRBY', keys.meta, 'bytes', digits(-bytes))
  local meta = call('HMGET', keys.meta, 'grace', 'gateway')
  if meta[1] and meta[2] and not in_grace(keys, meta[1]) then
    call('PUBLISH', hint_channel .. meta[2], 'mail\n' .. queue)
  end
end
journal_append('pickup')
return reply.removed(removed)
