#!lua
-- Guarantee: a reply ends when the given time is over, unless it ends before. It blocks other replies
-- no longer than that.
-- KEYS: 3–6 as in the include; per item: response, responses, order
-- ARGV: 4–11 as in the include, 12 number of items; per item: MinMessageInfo, ms to live
-- Returns: per item {'retiring', until_ms} | {'gone'}
-- Events: none; the script that ends the reply writes the event
-- Repeats: safe
-- include: transition
-- include: conversation
local answers = {}
for item = 1, items do
  local k, a = 4 + 3 * item, 11 + 2 * item
  local response, order, member = KEYS[k], KEYS[k + 2], ARGV[a]
  local score = tonumber(redis.call('ZSCORE', KEYS[k + 1], member) or nil)
  local until_ms, state, holder
  if score then until_ms, state, holder = read_place(order, score) end
  if not until_ms then
    answers[item] = { 'gone' }
  else
    until_ms = math.min(until_ms, now_ms + ARGV[a + 1])
    local due = tonumber(redis.call('ZSCORE', KEYS[3], member) or 0)
    redis.call('HSET', response, 'expiresAtTS', seconds(until_ms))
    redis.call('PEXPIRE', response, math.max(1, until_ms - now_ms))
    redis.call('ZADD', KEYS[3], seconds(math.min(due * 1000, until_ms)), member)
    write_place(order, score, until_ms, state, holder)
    answers[item] = { 'retiring', integer(until_ms) }
  end
end
return answers
