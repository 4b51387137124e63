#!lua flags=no-writes
-- Guarantee: the order of a conversation at one moment.
-- KEYS: 3–6 as in the include; then requests, responses, order
-- ARGV: 4–11 as in the include, 12 most requests and most replies to list
-- Returns: {now_ms, number of requests, number of replies, {request key, position, until_ms,
-- answered, …}, {MinMessageInfo, score, until_ms, state, holder, due, required sender it waits for
-- or '', since when, …}}
-- Events: none
-- Repeats: safe
-- include: transition
-- include: conversation
local requests, responses, order = KEYS[7], KEYS[8], KEYS[9]
local asked, replies = {}, {}
for _, key in ipairs(redis.call('LRANGE', requests, 0, items - 1)) do
  local position, until_ms, answered = read_request_entry(order, key)
  if position then
    for _, value in ipairs({ key, position, integer(until_ms), answered and 1 or 0 }) do
      asked[#asked + 1] = value
    end
  end
end
local found = redis.call('ZRANGE', responses, 0, items - 1, 'WITHSCORES')
for number = 1, #found, 2 do
  local score = tonumber(found[number + 1])
  local until_ms, state, holder = read_place(order, score)
  local due = redis.call('ZSCORE', KEYS[3], found[number]) or '0'
  local required = required_in(holder) or ''
  local since = required ~= '' and redis.call('ZSCORE', KEYS[6] .. required, found[number]) or '0'
  for _, value in ipairs({ found[number], integer(score), integer(until_ms or 0), state or 'P',
    holder or '-', due, required, since }) do
    replies[#replies + 1] = value
  end
end
return { integer(now_ms), redis.call('LLEN', requests), redis.call('ZCARD', responses), asked,
  replies }
