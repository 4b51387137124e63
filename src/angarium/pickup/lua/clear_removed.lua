#!lua
-- Guarantee: removed messages are forgotten after their rows are deleted. 'cleared' changes, so
-- callers that read the rows before read them again.
-- Events: none, the removal added the event
-- Repeats: safe
-- include: transition
-- include: queue
local keys = queue_keys(meta_key, messages_key, pending_key, sending_key, recipients_key,
  removed_key)
local last
each_item(function(id)
  call('SREM', keys.removed, id)
  last = id
end)
if call('EXISTS', keys.meta) == 1 then
  call('HSET', keys.meta, 'cleared', digits(now_ms) .. '-' .. digits(field(keys, 'moves'))
    .. '-' .. last)
end
if call('EXISTS', keys.removed) == 0 then call('SREM', removed_queues_key, queue) end
delete_if_unused(keys)
return reply.cleared
