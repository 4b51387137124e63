#!lua
-- Guarantee: a queued or sleeping transaction ends as cancelled, with its children. A running one
-- gets the field `cancel`, and its node gets a hint. A finished one does not change.
-- KEYS: 3 to 5 statistics, 6 processing, 7 sleeping, 8 toArchive, 9 webhooks, 10 to 11 stems of
-- qOut and states, 12 stem of qWait; per item: state
-- ARGV: 4 notify, 5 work, 6 archive_ms, 7 number of items; per item: id
-- Returns: per item 'cancelled' | 'cancelling' | 'finished' | 'no_state'
-- Events: cancelled, cancel_asked, resumed (module transactions)
-- Repeats: safe
-- include: transition
-- include: transactions
-- include: transaction_end
-- include: waiting
wait_stem = KEYS[12]
local cancel
function cancel(state, id)
  local found = redis.call('HMGET', state, 'status', 'run', 'label', 'more')
  if not found[1] then return 'no_state' end
  if FINAL[found[1]] then return 'finished' end
  if found[1] == 'running' then
    if redis.call('HSETNX', state, 'cancel', now_text) == 1 then
      redis.call('HSET', state, 'more', 1)
      record_event('cancel_asked', id, label(found[3]))
    end
    hints[#hints + 1] = 'cancel ' .. id
    return 'cancelling'
  end
  if found[1] == 'queued' then
    local list = redis.call('HGET', state, 'waits')
    if list then stop_waiting(id, list) end
  end
  local rare = end_transaction(state, id, found, 'cancelled', '', '')
  for number = 1, tonumber(rare[3] or 0) do
    local child = id .. '.' .. rare[5] .. '-' .. number
    cancel(KEYS[11] .. child, child)
  end
  return 'cancelled'
end

local statuses = {}
for item = 1, tonumber(ARGV[7]) do
  statuses[item] = cancel(KEYS[12 + item], ARGV[7 + item])
end
end_all()
write_batch()
return statuses
