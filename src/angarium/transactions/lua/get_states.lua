#!lua flags=no-writes
-- Guarantee: the states of all transactions are from the same moment.
-- KEYS: per item: state
-- ARGV: 4 number of items; per item: id
-- Returns: per item {field, value, …, 'now', now_ms}; only 'now' if there is no such transaction
-- Events: none
-- Repeats: safe
-- include: transition
local states = {}
local now_text = string.format('%.0f', now_ms)
for item = 1, tonumber(ARGV[4]) do
  local state = redis.call('HGETALL', KEYS[2 + item])
  state[#state + 1] = 'now'
  state[#state + 1] = now_text
  states[item] = state
end
return states
