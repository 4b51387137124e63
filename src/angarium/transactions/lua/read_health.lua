#!lua flags=no-writes
-- Guarantee: the longest running transactions, the queues and their first entries, the nodes and the
-- awaited step types, all from the same moment.
-- Events: none
-- Repeats: safe
-- include: transition
local counts = {}
for index, key in ipairs({ processing_key, sleeping_key, to_archive_key, webhooks_key, dead_key }) do
  counts[index] = redis.call('ZCARD', key)
end
local longest = {}
local oldest = redis.call('ZRANGE', processing_key, 0, longest_running - 1, 'WITHSCORES')
for index = 1, #oldest, 2 do
  local about = redis.call('HMGET', states_stem .. oldest[index], 'node', 'label')
  for _, value in ipairs({ oldest[index], oldest[index + 1], about[1] or '', about[2] or '' }) do
    longest[#longest + 1] = value
  end
end
local queues = {}
local function add_queue(group, kind, key)
  local in_turn = fair_stem .. kind .. '|' .. group
  local head = redis.call('LINDEX', key, 0) or redis.call('ZRANGE', in_turn, 0, 0)[1]
  local since = head and redis.call('HMGET', states_stem .. head, 'updated', 'created') or {}
  local length = redis.call('LLEN', key) + redis.call('ZCARD', in_turn)
  for _, value in ipairs({ group, kind, length, since[1] or since[2] or '0' }) do
    queues[#queues + 1] = value
  end
end
each_item(function(node_group, admin_key, out_key, in_key)
  add_queue(node_group, 'admin', admin_key)
  add_queue(node_group, 'out', out_key)
  add_queue(node_group, 'in', in_key)
end)
local waiting = {}
for _, list in ipairs(redis.call('ZRANGE', wait_stem .. 'places', 0, -1)) do
  local first = redis.call('ZRANGE', wait_stem .. list, 0, 0)[1]
  waiting[#waiting + 1] = list
  waiting[#waiting + 1] = redis.call('ZCARD', wait_stem .. list)
  waiting[#waiting + 1] = first and redis.call('HGET', states_stem .. first, 'updated') or '0'
  local who = string.match(list, '^[^|]*|(.*)$')
  waiting[#waiting + 1] = redis.call('ZSCORE', step_types_key, who) or '0'
end
return reply.health(string.format('%.0f', now_ms), counts, longest,
  redis.call('ZRANGE', nodes_key, 0, -1, 'WITHSCORES'), queues, waiting)
