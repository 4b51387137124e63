#!lua
-- Guarantee: that a surface has had tokens is known from now on, also when none is left.
-- KEYS: 3 tokens seen (hash: surface -> when its first token was seen, in milliseconds)
-- ARGV: 4 surface
-- Returns: {'remembered'} | {'known'}
-- Events: none, the tokens' own events say what happened
-- Repeats: safe
-- include: transition
if redis.call('HSETNX', KEYS[3], ARGV[4], string.format('%.0f', now_ms)) == 0 then
  return { 'known' }
end
return { 'remembered' }
