#!lua
-- Guarantee: a queued or sleeping transaction ends as cancelled, with its children. A running one
-- gets the field `cancel`, and its node gets a hint. A finished one does not change.
-- Events: cancelled, cancel_asked, resumed (module transactions)
-- Repeats: safe
-- include: transition
-- include: transactions
-- include: transaction_end
-- include: waiting
local cancel
function cancel(state, id)
  local found = redis.call('HMGET', state, 'status', 'run', 'label', 'more')
  if not found[1] then return reply.no_state end
  if FINAL[found[1]] then return reply.finished end
  if found[1] == 'running' then
    if redis.call('HSETNX', state, 'cancel', now_text) == 1 then
      redis.call('HSET', state, 'more', 1)
      record_event('cancel_asked', id, label(found[3]))
    end
    hints[#hints + 1] = 'cancel ' .. id
    return reply.cancelling
  end
  if found[1] == 'queued' then
    local list = redis.call('HGET', state, 'waits')
    if list then stop_waiting(id, list) end
  end
  local rare = end_transaction(state, id, found, 'cancelled', '', '')
  for number = 1, tonumber(rare[3] or 0) do
    local child = id .. '.' .. rare[5] .. '-' .. number
    cancel(states_stem .. child, child)
  end
  return reply.cancelled
end

local statuses = each_item(function(transaction_id, state_key)
  return cancel(state_key, transaction_id)
end)
end_all()
write_batch()
return statuses
