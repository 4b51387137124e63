#!lua
-- Guarantee: records for good that a surface (the API or the gateway) has had tokens.
-- KEYS: 3 tokens seen (hash: surface -> when its first token was seen, in milliseconds)
-- ARGV: 4 surface
-- Returns: {'remembered'} | {'known'}
-- Events: none, storing a token has its own event

-- Repeats: safe
-- include: transition
if redis.call('HSETNX', KEYS[3], ARGV[4], string.format('%.0f', now_ms)) == 0 then
  return { 'known' }
end
return { 'remembered' }
