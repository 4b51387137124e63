#!lua
-- Guarantee: taken messages whose answer never left the gateway are pending again, in their old
-- position. Messages that another reader has by now, or that were removed, stay unchanged: due_ms is
-- the time that the take named for each.
-- Events: returned (module pickup)
-- Repeats: safe, by id and time
-- include: transition
-- include: queue
local keys = queue_keys(meta_key, messages_key, pending_key, sending_key, recipients_key,
  removed_key)
local returned, archived = 0, 0
each_item(function(id, due_ms)
  local score = call('ZSCORE', keys.sending, id)
  if score and digits(tonumber(score)) == due_ms then
    returned, archived = returned + 1, archived + make_pending(keys, queue, id)
  end
end)
if archived > 0 then call('HINCRBY', keys.meta, 'held', -archived) end
local gateway = returned > 0 and call('HGET', keys.meta, 'gateway')
if gateway and alive(gateways_key, gateway, {}) then
  call('PUBLISH', hint_channel .. gateway, 'mail\n' .. queue)
end
journal_append('pickup')
return reply.returned(returned)
