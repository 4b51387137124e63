#!lua
-- Guarantee: records the first response with a final status that was written to a client. Removes the
-- webhook if the start asked for that.
-- KEYS: 3 to 5 statistics, 6 webhooks; per item: state
-- ARGV: 4 notify, 5 work, 6 number of items; per item: id, notified_ms as in the response
-- Returns: per item 'recorded' | 'known' | 'not_ended' | 'no_state'
-- Events: notified, webhook_cancelled (module transactions)
-- Repeats: safe, the second call returns 'known'
-- include: transition
-- include: transactions
local statuses = {}
for item = 1, tonumber(ARGV[6]) do
  local at = 5 + 2 * item
  local id, notified_ms, state = ARGV[at], ARGV[at + 1], KEYS[6 + item]
  local found = redis.call('HMGET', state, 'status', 'label', 'notified', 'options')
  local status = 'recorded'
  if not found[1] then
    status = 'no_state'
  elseif not FINAL[found[1]] then
    status = 'not_ended'
  else
    local about = label(found[2])
    if found[3] then
      status = 'known'
    else
      redis.call('HSET', state, 'notified', notified_ms)
      record_event('notified', id, about)
    end
    if string.find(found[4] or '', 'c', 1, true) and redis.call('ZREM', KEYS[6], id) == 1 then
      record_event('webhook_cancelled', id, about)
    end
  end
  statuses[item] = status
end
write_batch()
return statuses
