#!lua
-- Guarantee: a gateway's sessions are live until its lease ends, and no longer.
-- KEYS: 3 gateways
-- ARGV: 4 gateway, 5 lease_ms, or 0 to end the lease
-- Returns: {'renewed', now_ms} | {'revived', now_ms} (it had run out, or is new) | {'ended'}
-- Events: none, each session adds an event when it closes
-- Repeats: safe
-- include: transition
if ARGV[5] == '0' then
  -- The lease is over, and the gateway stays listed until its sessions are closed.
  redis.call('ZADD', KEYS[3], 'XX', 0, ARGV[4])
  return { 'ended' }
end
local until_ms = tonumber(redis.call('ZSCORE', KEYS[3], ARGV[4]))
redis.call('ZADD', KEYS[3], string.format('%.0f', now_ms + tonumber(ARGV[5])), ARGV[4])
return { until_ms and until_ms >= now_ms and 'renewed' or 'revived', now_ms }
