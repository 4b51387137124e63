#!lua
-- Guarantee: a notification that is due goes to one caller. If the caller dies, another one gets it
-- when the claim is over.
-- Events: none, settle_push adds the event
-- Repeats: no, a repeat does not return the notifications of the first call
-- include: transition
local claimed = {}
local due = redis.call('ZRANGEBYSCORE', pushes_due_key, '-inf', string.format('%.0f', now_ms),
  'LIMIT', 0, pushes_max)
for _, token in ipairs(due) do
  local push = redis.call('HGET', pushes_key, token)
  if push then
    local tries, body = string.match(push, '^(%d+) (.*)$')
    redis.call('HSET', pushes_key, token, (tries + 1) .. ' ' .. body)
    redis.call('ZADD', pushes_due_key, string.format('%.0f', now_ms + claim_ms), token)
    claimed[#claimed + 1] = token
    claimed[#claimed + 1] = tries
    claimed[#claimed + 1] = body
  else
    redis.call('ZREM', pushes_due_key, token)
  end
end
return reply.claimed(claimed)
