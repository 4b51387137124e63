#!lua
-- Guarantee: a gateway's sessions are live until its lease ends, and no longer. A lease of 0 ms ends
-- it. 'revived': the lease had run out, or is new.
-- Events: none, each session adds an event when it closes
-- Repeats: safe
-- include: transition
if lease_ms == 0 then
  -- The lease is over, and the gateway stays listed until its sessions are closed.
  redis.call('ZADD', gateways_key, 'XX', 0, gateway)
  return reply.ended
end
local until_ms = tonumber(redis.call('ZSCORE', gateways_key, gateway))
redis.call('ZADD', gateways_key, string.format('%.0f', now_ms + lease_ms), gateway)
local valid = until_ms and until_ms >= now_ms
return valid and reply.renewed(now_ms) or reply.revived(now_ms)
