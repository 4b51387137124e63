#!lua
-- Guarantee: records for good that a surface (the API or the gateway) has had tokens.
-- Events: none, storing a token has its own event
-- Repeats: safe
-- include: transition
if redis.call('HSETNX', seen_key, surface, string.format('%.0f', now_ms)) == 0 then
  return reply.known
end
return reply.remembered
