#!lua
-- Guarantee: a due reply goes to one caller. If the caller does not take it, it is due again after
-- `pending_ttl`.
-- KEYS: 3–6 as in the include
-- ARGV: 4–11 as in the include, 12 most replies to claim
-- Returns: {time at which the claim expires, MinMessageInfo, …}
-- Events: none; taking a reply writes its event
-- Repeats: no, a second call claims other replies
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
