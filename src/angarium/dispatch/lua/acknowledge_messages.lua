#!lua
-- Guarantee: a message whose result a third-party worker stored itself is no longer pending.
-- KEYS: 3 pending (zset), 4 payloads (hash), 5 attempts (hash)
-- ARGV: 4 number of messages, then for each its id and the consumer that acknowledges
-- Returns: for each 'acknowledged' | 'unknown' never pending, or finished already
-- Events: acknowledged
-- Repeats: safe, the second call answers 'unknown'
-- include: transition
local statuses = {}
for i = 1, tonumber(ARGV[4]) do
  local id, consumer = ARGV[3 + 2 * i], ARGV[4 + 2 * i]
  if redis.call('ZREM', KEYS[3], id) == 1 then
    redis.call('HDEL', KEYS[4], id)
    redis.call('HDEL', KEYS[5], id)
    note('acknowledged', id, { n = consumer })
    statuses[i] = 'acknowledged'
  else
    statuses[i] = 'unknown'
  end
end
journal_append('dispatch')
return statuses
