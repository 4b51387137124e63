#!lua
-- Guarantee: ends a lease once: delivered, retried later, a dead letter with the reason, or deferred as
-- if it had not been taken.
-- KEYS: 3 retries, 4 taken, 5 leases, 6 dead letters
-- ARGV: 4 number of items; per item: lease, outcome, message id, key, attempt, message, delay_ms, reason
-- Returns: per item 'settled' | 'gone' (the lease expired, and the message was taken again)
-- Events: outbound_delivered, outbound_retried, outbound_dead; before the first of them
-- outbound_accepted, for a message that another program queued (its outcome ends in '+')
-- Repeats: safe, idempotent by lease
-- include: transition

-- Two equal messages would be one member of the set. A blank at the end does not change JSON.
local function retry_later(message, at_s)
  while redis.call('ZADD', KEYS[3], 'NX', at_s, message) == 0 do message = message .. ' ' end
end

local statuses = {}
for item = 1, tonumber(ARGV[4]) do
  local place = 8 * item - 3
  local lease, outcome, id, key = ARGV[place], ARGV[place + 1], ARGV[place + 2], ARGV[place + 3]
  local attempt, message, reason = tonumber(ARGV[place + 4]), ARGV[place + 5], ARGV[place + 7]
  if redis.call('HDEL', KEYS[4], lease) == 0 then
    statuses[item] = 'gone'
  else
    redis.call('ZREM', KEYS[5], lease)
    if string.sub(outcome, -1) == '+' then
      outcome = string.sub(outcome, 1, -2)
      note('outbound_accepted', id, { k = key, d = 'foreign' })
    end
    if outcome == 'retried' or outcome == 'deferred' then
      retry_later(message, string.format('%.3f', (now_ms + tonumber(ARGV[place + 6])) / 1000))
    elseif outcome == 'dead' then
      redis.call('RPUSH', KEYS[6], cjson.encode({ id = id, reason = reason, message = message,
        at_ms = now_ms }))
    end
    if outcome ~= 'deferred' then
      note('outbound_' .. outcome, id, { k = key, a = attempt, d = reason ~= '' and reason or nil })
    end
    statuses[item] = 'settled'
  end
end
journal_append('routing')
return statuses
