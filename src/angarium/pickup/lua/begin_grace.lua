#!lua
-- Guarantee: messages of a queue that were sent and not acknowledged are pending again after the
-- grace period, and nobody gets newer ones before. A queue with a live session does not change.
-- Events: none
-- Repeats: safe
-- include: transition
-- include: queue
local known = {}
return each_item(function(queue, meta_key, messages_key, pending_key, sending_key, recipients_key,
  removed_key)
  local keys = queue_keys(meta_key, messages_key, pending_key, sending_key, recipients_key,
    removed_key)
  local gateway = call('HGET', keys.meta, 'gateway')
  if gateway and alive(gateways_key, gateway, known) then return reply.live end
  begin_grace(keys, due_key, queue, now_ms + grace_ms)
  return reply.begun
end)
