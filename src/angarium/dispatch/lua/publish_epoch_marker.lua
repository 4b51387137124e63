#!lua
-- Guarantee: all subscribers of one server receive this marker between the same two messages.
-- KEYS: 3 epoch counter (string)
-- ARGV: 4 channel of the epoch markers
-- Returns: number of the epoch that begins
-- Events: none, no message changes its state
-- Repeats: safe, an additional marker only ends an epoch earlier
-- include: transition
local epoch = redis.call('INCR', KEYS[3])
redis.call('PUBLISH', ARGV[4], 'epoch ' .. string.format('%.0f', epoch))
return epoch
