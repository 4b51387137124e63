#!lua
-- Guarantee: a dead gateway is forgotten when it has no sessions left.
-- KEYS: 3 gateways, 4 its sessions
-- ARGV: 4 gateway
-- Returns: {'forgotten'} | {'kept'}
-- Events: none
-- Repeats: safe
-- include: transition
local until_ms = tonumber(redis.call('ZSCORE', KEYS[3], ARGV[4]))
if redis.call('EXISTS', KEYS[4]) == 1 or not until_ms or until_ms >= now_ms then return { 'kept' } end
redis.call('ZREM', KEYS[3], ARGV[4])
return { 'forgotten' }
