#!lua
-- Guarantee: a dead gateway is forgotten when it has no sessions left.
-- Events: none
-- Repeats: safe
-- include: transition
local until_ms = tonumber(redis.call('ZSCORE', gateways_key, gateway))
if redis.call('EXISTS', sessions_key) == 1 or not until_ms or until_ms >= now_ms then
  return reply.kept
end
redis.call('ZREM', gateways_key, gateway)
return reply.forgotten
