#!lua
-- Guarantee: a reply that is not sent gets a new time from which a process may claim it.
-- KEYS: 3–6 as in the include; per item: response, responses, order
-- ARGV: 4–11 as in the include, 12 number of items; per item: MinMessageInfo, ms to wait, additional
-- ms per retry so far
-- Returns: per item {'postponed', due_ms} | {'sent'} | {'gone'}
-- Events: none; the state does not change
-- Repeats: safe
-- include: transition
-- include: conversation
local answers = {}
for item = 1, items do
  local k, a = 4 + 3 * item, 10 + 3 * item
  local response, member = KEYS[k], ARGV[a]
  local retries = redis.call('HGET', response, 'awaitedRetries')
  local score = tonumber(redis.call('ZSCORE', KEYS[k + 1], member) or nil)
  local until_ms, state
  if score then until_ms, state = read_place(KEYS[k + 2], score) end
  if not retries or not until_ms then
    answers[item] = { 'gone' }
  elseif state == 'S' then
    answers[item] = { 'sent' }
  else
    local due_ms = math.min(now_ms + ARGV[a + 1] + ARGV[a + 2] * retries, until_ms)
    redis.call('HSET', response, 'awaitedToDateTS', seconds(due_ms))
    redis.call('ZADD', KEYS[3], seconds(due_ms), member)
    answers[item] = { 'postponed', integer(due_ms) }
  end
end
return answers
