#!lua flags=no-writes
-- Guarantee: reports which messages are in Redis.
-- KEYS: per item the six of its queue
-- ARGV: 4 number of items; per item: id
-- Returns: per item 'found' | 'missing'
-- Events: none
-- Repeats: safe
-- include: transition
-- include: queue
local statuses = {}
for item = 1, tonumber(ARGV[4]) do
  local queue = queue_at(3 + (item - 1) * QUEUE_KEYS)
  local found = call('HEXISTS', queue.messages, ARGV[4 + item]) == 1
  statuses[item] = found and 'found' or 'missing'
end
return statuses
