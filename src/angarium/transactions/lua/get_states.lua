#!lua flags=no-writes
-- Guarantee: what is known of each transaction, as it is at one moment.
-- KEYS: per item: state
-- ARGV: 4 number of items; per item: id
-- Returns: per item {field, value, …}, empty when there is no such transaction
-- Events: none
-- Repeats: safe
-- include: transition
local states = {}
for item = 1, tonumber(ARGV[4]) do states[item] = redis.call('HGETALL', KEYS[2 + item]) end
return states
