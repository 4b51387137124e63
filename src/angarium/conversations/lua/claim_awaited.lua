#!lua
-- Guarantee: a due reply goes to one caller; if that one is not heard of again, it is due once
-- more when `pending_ttl` is over.
-- KEYS: 3–6 as in the include
-- ARGV: 4–11 as in the include, 12 most to claim
-- Returns: {until when they are claimed, MinMessageInfo, …}
-- Events: none, the taking of each is noted
-- Repeats: no, a second call claims others
-- include: transition
-- include: conversation
local claim = seconds(now_ms + pending_ttl)
local due = redis.call('ZRANGE', KEYS[3], '-inf', seconds(now_ms), 'BYSCORE', 'LIMIT', 0, items)
local answer = { claim }
for number, member in ipairs(due) do
  redis.call('ZADD', KEYS[3], claim, member)
  answer[number + 1] = member
end
return answer
