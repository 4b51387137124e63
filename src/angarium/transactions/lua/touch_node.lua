#!lua
-- Guarantee: stores the heartbeat of a node, and the lengths of its queues in the statistics. A node
-- that leaves is removed at once. A node that has been silent for a day is removed by the next
-- heartbeat of any node.
-- Events: none, a heartbeat changes no transaction
-- Repeats: safe
-- include: transition
-- include: transactions
if leaving then
  redis.call('ZREM', nodes_key, node)
  return reply.left
end
redis.call('ZADD', nodes_key, now_text, node)
redis.call('ZREMRANGEBYSCORE', nodes_key, '-inf', string.format('%.0f', now_ms - 86400000))
for step_type in string.gmatch(step_types, '%S+') do
  redis.call('ZADD', step_types_key, now_text, step_type)
end
each_item(function(node_group, admin_key, out_key, in_key)
  gauges['queue:' .. node_group .. '|admin'] = redis.call('LLEN', admin_key)
  gauges['queue:' .. node_group .. '|out'] = redis.call('LLEN', out_key)
  gauges['queue:' .. node_group .. '|in'] = redis.call('LLEN', in_key)
  gauges['queue:' .. node_group .. '|waiting'] = 0
end)
for _, list in ipairs(redis.call('ZRANGE', wait_stem .. 'places', 0, -1)) do
  local field = 'queue:' .. string.match(list, '|([^|]*)|') .. '|waiting'
  if gauges[field] then gauges[field] = gauges[field] + redis.call('ZCARD', wait_stem .. list) end
end
write_batch()
return reply.alive(now_text)
