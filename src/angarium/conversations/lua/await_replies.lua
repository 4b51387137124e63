#!lua
-- Guarantee: a reply that can't be sent now is AWAITED until its next try, and no process holds it. A
-- sent reply, or one that another process holds, does not change. A reply that waits for a process
-- with its sender continues to do so.
-- KEYS: 3–6 as in the include; per item: response, responses, order
-- ARGV: 4–11 as in the include, 12 number of items; per item: conversation id, response id,
-- MinMessageInfo, ms to wait, additional ms per retry so far, reason, '1' if sending was not tried:
-- the next try is then no retry
-- Returns: per item {'awaited', due_ms} | {'sent'} | {'held', holder} | {'gone'}
-- Events: awaited (module conversations)
-- Repeats: safe, the second call returns 'awaited' and changes nothing
-- include: transition
-- include: conversation
local function await(response, responses, order, a)
  local member = ARGV[a + 2]
  local found = redis.call('HMGET', response, 'status', 'awaitedRetries', 'awaitedToDateTS')
  local score = tonumber(redis.call('ZSCORE', responses, member) or nil)
  if not found[1] or not score then return { 'gone' } end
  local until_ms, state, holder = read_place(order, score)
  if not until_ms then return { 'gone' } end
  if state == 'S' then return { 'sent' } end
  if found[1] == 'AWAITED' then return { 'awaited', integer(found[3] * 1000) } end
  local lapsed = found[3] * 1000 <= now_ms
  local another = holder ~= '-' and holder ~= '*' and holder ~= actor and not required_in(holder)
  if another and not lapsed then return { 'held', holder } end
  if required_in(holder) then
    redis.call('HSET', response, 'status', 'AWAITED')
    note('awaited', ARGV[a + 1], { k = ARGV[a], a = tonumber(found[2]), d = ARGV[a + 5] })
    return { 'awaited', integer(found[3] * 1000) }
  end
  local wait_ms = ARGV[a + 3] + ARGV[a + 4] * found[2]
  local due_ms = math.min(now_ms + wait_ms, until_ms)
  redis.call('HSET', response, 'status', 'AWAITED', 'awaitedToDateTS', seconds(due_ms),
    'untried', ARGV[a + 6])
  redis.call('ZADD', KEYS[3], seconds(due_ms), member)
  write_place(order, score, until_ms, 'P', '-')
  note('awaited', ARGV[a + 1], { k = ARGV[a], a = tonumber(found[2]), d = ARGV[a + 5] })
  return { 'awaited', integer(due_ms) }
end

local answers = {}
for item = 1, items do
  local k = 4 + 3 * item
  answers[item] = await(KEYS[k], KEYS[k + 1], KEYS[k + 2], 6 + 7 * item)
end
journal_append('conversations')
return answers
