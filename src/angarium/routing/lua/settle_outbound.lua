#!lua
-- Guarantee: a loan ends once: delivered, to be tried again, given up with the reason, or deferred
-- as if it had not been taken.
-- KEYS: 3 retries, 4 taken, 5 loans, 6 dead letters
-- ARGV: 4 number of items; per item: loan, outcome, message id, key, attempt, message, delay_ms, reason
-- Returns: per item 'settled' | 'gone', when the loan had run out
-- Events: outbound_delivered, outbound_retried, outbound_dead; outbound_accepted before the first of
-- them for a message that another writer queued (its outcome ends in '+')
-- Repeats: safe, idempotent by loan
-- include: transition

-- Two equal messages would be one member; a blank at the end changes nothing in JSON.
local function retry_later(message, at_s)
  while redis.call('ZADD', KEYS[3], 'NX', at_s, message) == 0 do message = message .. ' ' end
end

local statuses = {}
for item = 1, tonumber(ARGV[4]) do
  local place = 8 * item - 3
  local loan, outcome, id, key = ARGV[place], ARGV[place + 1], ARGV[place + 2], ARGV[place + 3]
  local attempt, message, reason = tonumber(ARGV[place + 4]), ARGV[place + 5], ARGV[place + 7]
  if redis.call('HDEL', KEYS[4], loan) == 0 then
    statuses[item] = 'gone'
  else
    redis.call('ZREM', KEYS[5], loan)
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
