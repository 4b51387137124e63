#!lua
-- Guarantee: a notification that is due goes to one caller. If the caller dies, another one gets it
-- when the claim is over.
-- KEYS: 3 pushes due, 4 pushes
-- ARGV: 4 claim_ms, 5 count_max
-- Returns: a list: hashed token, earlier tries, notification, …
-- Events: none, settle_push adds the event
-- Repeats: no, a repeat does not return the notifications of the first call
-- include: transition
local claimed = {}
local due = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now_ms),
  'LIMIT', 0, ARGV[5])
for _, token in ipairs(due) do
  local push = redis.call('HGET', KEYS[4], token)
  if push then
    local tries, body = string.match(push, '^(%d+) (.*)$')
    redis.call('HSET', KEYS[4], token, (tries + 1) .. ' ' .. body)
    redis.call('ZADD', KEYS[3], string.format('%.0f', now_ms + tonumber(ARGV[4])), token)
    claimed[#claimed + 1] = token
    claimed[#claimed + 1] = tries
    claimed[#claimed + 1] = body
  else
    redis.call('ZREM', KEYS[3], token)
  end
end
return claimed
