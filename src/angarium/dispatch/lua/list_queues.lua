#!lua flags=no-writes
-- Guarantee: the named queues in which messages wait, at most `queues_max`, each with the number of
-- messages and the time since which the first of them waits.
-- Events: none, it only reads
-- Repeats: safe
-- include: transition
local rows, from = {}, '-'
for _ = 1, queues_max do
  local first = redis.call('ZRANGEBYLEX', waiting_key, from, '+', 'LIMIT', 0, 1)[1]
  if not first then break end
  local queue, at_ms = string.match(first, '^([^%z]*)%z(%d+)')
  from = '[' .. queue .. '\1'
  local count = redis.call('ZLEXCOUNT', waiting_key, '[' .. queue .. '\0', '(' .. queue .. '\1')
  local r = #rows
  rows[r + 1], rows[r + 2], rows[r + 3] = queue, count, math.max(0, now_ms - tonumber(at_ms))
end
return reply.queues(rows)
