#!lua flags=no-writes
-- Guarantee: what needs an eye on it: transactions that run longest, queues and their heads, nodes,
-- step types that are waited for.
-- KEYS: 3 stem of states, 4 processing, 5 nodes, 6 sleeping, 7 toArchive, 8 webhooks,
-- 9 stem of qWait; the queues
-- ARGV: 4 elders
-- Returns: {now_ms, {running, sleeping, to archive, webhooks}, {id, taken_ms, node, pipeline, …},
-- {node, seen_ms, …}, {length, waiting since_ms or 0, …}, {place, count, since_ms, …}}
-- Events: none
-- Repeats: safe
-- include: transition
local counts = {}
for index, key in ipairs({ KEYS[4], KEYS[6], KEYS[7], KEYS[8] }) do
  counts[index] = redis.call('ZCARD', key)
end
local elders = {}
local oldest = redis.call('ZRANGE', KEYS[4], 0, tonumber(ARGV[4]) - 1, 'WITHSCORES')
for index = 1, #oldest, 2 do
  local about = redis.call('HMGET', KEYS[3] .. oldest[index], 'node', 'label')
  for _, value in ipairs({ oldest[index], oldest[index + 1], about[1] or '', about[2] or '' }) do
    elders[#elders + 1] = value
  end
end
local queues = {}
for index = 10, #KEYS do
  local head = redis.call('LINDEX', KEYS[index], 0)
  local since = head and redis.call('HMGET', KEYS[3] .. head, 'updated', 'created') or {}
  queues[#queues + 1] = redis.call('LLEN', KEYS[index])
  queues[#queues + 1] = since[1] or since[2] or '0'
end
local waiting = {}
for _, place in ipairs(redis.call('ZRANGE', KEYS[9] .. 'places', 0, -1)) do
  local first = redis.call('ZRANGE', KEYS[9] .. place, 0, 0, 'WITHSCORES')
  waiting[#waiting + 1] = place
  waiting[#waiting + 1] = redis.call('ZCARD', KEYS[9] .. place)
  waiting[#waiting + 1] = first[2] or '0'
end
return {
  string.format('%.0f', now_ms), counts, elders, redis.call('ZRANGE', KEYS[5], 0, -1, 'WITHSCORES'),
  queues, waiting,
}
