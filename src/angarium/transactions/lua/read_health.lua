#!lua flags=no-writes
-- Guarantee: the longest running transactions, the queues and their first entries, the nodes and the
-- awaited step types, all from the same moment.
-- KEYS: 3 stem of states, 4 processing, 5 nodes, 6 sleeping, 7 toArchive, 8 webhooks,
-- 9 stem of qWait; the queues
-- ARGV: 4 number of longest running transactions
-- Returns: {now_ms, {running, sleeping, to archive, webhooks}, {id, score, node, label, …},
-- {node, heartbeat_ms, …}, {length, waiting since_ms or 0, …}, {waiting list, length, since_ms, …}}
-- Events: none
-- Repeats: safe
-- include: transition
local counts = {}
for index, key in ipairs({ KEYS[4], KEYS[6], KEYS[7], KEYS[8] }) do
  counts[index] = redis.call('ZCARD', key)
end
local longest = {}
local oldest = redis.call('ZRANGE', KEYS[4], 0, tonumber(ARGV[4]) - 1, 'WITHSCORES')
for index = 1, #oldest, 2 do
  local about = redis.call('HMGET', KEYS[3] .. oldest[index], 'node', 'label')
  for _, value in ipairs({ oldest[index], oldest[index + 1], about[1] or '', about[2] or '' }) do
    longest[#longest + 1] = value
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
for _, list in ipairs(redis.call('ZRANGE', KEYS[9] .. 'places', 0, -1)) do
  local first = redis.call('ZRANGE', KEYS[9] .. list, 0, 0, 'WITHSCORES')
  waiting[#waiting + 1] = list
  waiting[#waiting + 1] = redis.call('ZCARD', KEYS[9] .. list)
  waiting[#waiting + 1] = first[2] or '0'
end
return {
  string.format('%.0f', now_ms), counts, longest, redis.call('ZRANGE', KEYS[5], 0, -1, 'WITHSCORES'),
  queues, waiting,
}
