#!lua
-- Guarantee: ends a lease once: delivered, retried later, a dead letter with the reason, or deferred as
-- if it had not been taken.
-- Events: outbound_delivered, outbound_retried, outbound_dead; before the first of them
-- outbound_accepted, for a message that another program queued (its outcome ends in '+')
-- Repeats: safe, idempotent by lease
-- include: transition
-- Two equal messages would be one member of the set. A blank at the end does not change JSON.
local function retry_later(message, at_s)
  while redis.call('ZADD', retries_key, 'NX', at_s, message) == 0 do message = message .. ' ' end
end

local replies = each_item(function(lease, outcome, foreign, message_id, url, attempt, message, delay_ms, reason)
  if redis.call('HDEL', taken_key, lease) == 0 then return reply.gone end
  redis.call('ZREM', leases_key, lease)
  if foreign then note('outbound_accepted', message_id, { k = url, d = 'foreign' }) end
  if outcome == 'retried' or outcome == 'deferred' then
    retry_later(message, string.format('%.3f', (now_ms + delay_ms) / 1000))
  elseif outcome == 'dead' then
    redis.call('RPUSH', dead_key, cjson.encode({ id = message_id, reason = reason,
      message = message, attempts = attempt, at_ms = now_ms }))
  end
  if outcome ~= 'deferred' then
    note('outbound_' .. outcome, message_id, { k = url, a = attempt, d = reason ~= '' and reason or nil })
  end
  return reply.settled
end)
journal_append('routing')
return replies
