#!lua
-- Guarantee: stores the heartbeat of a node, and the lengths of its queues in the statistics. A node
-- that leaves is removed at once. A node that has been silent for a day, and a step type that no node
-- had for 30 days, are removed by the next heartbeat of any node.
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
if fair_owners then
  redis.call('HSET', turns_stem .. 'on', 'since', now_text)
  redis.call('EXPIRE', turns_stem .. 'on', 3600)
end
local known = {}
local function know(step_type)
  known[#known + 1] = now_text
  known[#known + 1] = step_type
end
for step_type in string.gmatch(step_types, '%S+') do know(step_type) end
each_item(function(node_group, admin_key, out_key, in_key)
  redis.call('SADD', groups_key, node_group)
  for step_type in string.gmatch(step_types, '%S+') do know(node_group .. '|' .. step_type) end
  gauges['queue:' .. node_group .. '|admin'] = redis.call('LLEN', admin_key)
  gauges['queue:' .. node_group .. '|out'] = redis.call('LLEN', out_key)
    + redis.call('ZCARD', fair_stem .. 'out|' .. node_group)
  gauges['queue:' .. node_group .. '|in'] = redis.call('LLEN', in_key)
    + redis.call('ZCARD', fair_stem .. 'in|' .. node_group)
  gauges['queue:' .. node_group .. '|waiting'] = 0
end)
if #known > 0 then call_many('ZADD', step_types_key, known) end
redis.call('ZREMRANGEBYSCORE', step_types_key, '-inf', string.format('%.0f', now_ms - 30 * 86400000))
for _, list in ipairs(redis.call('ZRANGE', wait_stem .. 'places', 0, -1)) do
  local field = 'queue:' .. string.match(list, '|([^|]*)|') .. '|waiting'
  if gauges[field] then gauges[field] = gauges[field] + redis.call('ZCARD', wait_stem .. list) end
end
write_batch()
return reply.alive(now_text)
