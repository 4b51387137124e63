#!lua
-- Guarantee: every subscriber of one server sees this mark at the same place among the messages.
-- KEYS: 3 epoch counter (string)
-- ARGV: 4 channel of the marks
-- Returns: number of the epoch that begins
-- Events: none, nothing changes hands
-- Repeats: safe, one mark more does no harm
-- include: transition
local epoch = redis.call('INCR', KEYS[3])
redis.call('PUBLISH', ARGV[4], 'epoch ' .. string.format('%.0f', epoch))
return epoch
