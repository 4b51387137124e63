#!lua flags=no-writes
-- Guarantee: a conversation's order as it is at one moment: who stands before whom, until when.
-- KEYS: 3–6 as in the include; then requests, responses, order
-- ARGV: 4–11 as in the include, 12 most of each to list
-- Returns: {now_ms, requests in all, replies in all, {request key, position, until_ms, answered,
-- …}, {MinMessageInfo, score, until_ms, state, holder, due, need or '', waits for it since, …}}
-- Events: none
-- Repeats: safe
-- include: transition
-- include: conversation
local requests, responses, order = KEYS[7], KEYS[8], KEYS[9]
local asked, replies = {}, {}
for _, key in ipairs(redis.call('LRANGE', requests, 0, items - 1)) do
  local position, until_ms, answered = listed(order, key)
  if position then
    for _, value in ipairs({ key, position, whole(until_ms), answered and 1 or 0 }) do
      asked[#asked + 1] = value
    end
  end
end
local found = redis.call('ZRANGE', responses, 0, items - 1, 'WITHSCORES')
for number = 1, #found, 2 do
  local score = tonumber(found[number + 1])
  local until_ms, state, holder = placed(order, score)
  local due = redis.call('ZSCORE', KEYS[3], found[number]) or '0'
  local need = need_in(holder) or ''
  local since = need ~= '' and redis.call('ZSCORE', KEYS[6] .. need, found[number]) or '0'
  for _, value in ipairs({ found[number], whole(score), whole(until_ms or 0), state or 'P',
    holder or '-', due, need, since }) do
    replies[#replies + 1] = value
  end
end
return { whole(now_ms), redis.call('LLEN', requests), redis.call('ZCARD', responses), asked,
  replies }
