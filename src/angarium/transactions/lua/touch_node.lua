#!lua
-- Guarantee: stores the heartbeat of a node, and the lengths of its queues in the statistics. A node
-- that leaves is removed at once. A node that has been silent for a day is removed by the next
-- heartbeat of any node.
-- KEYS: 3 to 5 statistics, 6 nodes, 7 step types, 8 stem of qWait; per group: qAdmin, qOut, qIn
-- ARGV: 4 notify, 5 work, 6 node, 7 'here' | 'leaving', 8 number of groups, 9 number of step types;
-- the groups; the types
-- Returns: now_ms | 'left'
-- Events: none, a heartbeat changes no transaction
-- Repeats: safe
-- include: transition
-- include: transactions
local node, groups, types = ARGV[6], tonumber(ARGV[8]), tonumber(ARGV[9])
if ARGV[7] == 'leaving' then
  redis.call('ZREM', KEYS[6], node)
  return 'left'
end
redis.call('ZADD', KEYS[6], now_text, node)
redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', string.format('%.0f', now_ms - 86400000))
for index = 1, types do redis.call('ZADD', KEYS[7], now_text, ARGV[9 + groups + index]) end
for index = 1, groups do
  for rank, kind in ipairs({ 'admin', 'out', 'in' }) do
    local length = redis.call('LLEN', KEYS[5 + 3 * index + rank])
    gauges['queue:' .. ARGV[9 + index] .. '|' .. kind] = length
  end
  gauges['queue:' .. ARGV[9 + index] .. '|waiting'] = 0
end
for _, list in ipairs(redis.call('ZRANGE', KEYS[8] .. 'places', 0, -1)) do
  local field = 'queue:' .. string.match(list, '|([^|]*)|') .. '|waiting'
  if gauges[field] then gauges[field] = gauges[field] + redis.call('ZCARD', KEYS[8] .. list) end
end
write_batch()
return now_text
