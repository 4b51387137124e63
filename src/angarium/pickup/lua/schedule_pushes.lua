#!lua
-- Guarantee: a token has one notification to send at a time, the newest, and gets one in each
-- interval at most.
-- KEYS: 3 pushes due, 4 notes, 5 last
-- ARGV: 4 interval_ms, 5 number of items; per item: hashed token, note, message id
-- Returns: per item 'scheduled' | 'joined' one was waiting already, and now tells of this message
-- Events: push_scheduled (room pickup)
-- Repeats: safe, the second call answers 'joined'
-- include: transition
local interval_ms, statuses = tonumber(ARGV[4]), {}
redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', string.format('%.0f', now_ms - interval_ms))
for item = 1, tonumber(ARGV[5]) do
  local token, push, id = ARGV[3 + 3 * item], ARGV[4 + 3 * item], ARGV[5 + 3 * item]
  local last_ms = tonumber(redis.call('ZSCORE', KEYS[5], token))
  local due_ms = last_ms and last_ms + interval_ms or now_ms
  redis.call('HSET', KEYS[4], token, '0 ' .. push)
  if redis.call('ZADD', KEYS[3], 'NX', string.format('%.0f', due_ms), token) == 1 then
    note('push_scheduled', id)
    statuses[item] = 'scheduled'
  else
    statuses[item] = 'joined'
  end
end
journal_append('pickup')
return statuses
