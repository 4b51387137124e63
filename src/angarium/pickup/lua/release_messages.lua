#!lua
-- Guarantee: sent messages whose time is over are pending again, in their old position.
-- Events: returned (module pickup)
-- Repeats: safe
-- include: transition
-- include: queue
local known = {}
local replies = each_item(function(queue, meta_key, messages_key, pending_key, sending_key,
  recipients_key, removed_key)
  local keys = queue_keys(meta_key, messages_key, pending_key, sending_key, recipients_key,
    removed_key)
  local released = release(keys, queue, '-inf', digits(now_ms), messages_max)
  local next_due = call('ZRANGEBYSCORE', keys.sending, '-inf', '(' .. digits(HELD),
    'WITHSCORES', 'LIMIT', 0, 1)[2]
  if next_due then
    call('ZADD', due_key, next_due, queue)
  else
    call('ZREM', due_key, queue)
  end
  local gateway = released > 0 and call('HGET', keys.meta, 'gateway')
  if gateway and alive(gateways_key, gateway, known) then
    call('PUBLISH', hint_channel .. gateway, 'mail\n' .. queue)
  end
  return reply.released(released)
end)
journal_append('pickup')
return replies
