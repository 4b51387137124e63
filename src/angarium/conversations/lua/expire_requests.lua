#!lua
-- Guarantee: a request that nobody answered in its time is noted once.
-- KEYS: 3 pendingMessages, 4 openRequests, 5 newMessages
-- ARGV: 4–10 as in the include, 11 most to expire
-- Returns: {number expired}
-- Events: request_expired (room conversations)
-- Repeats: safe
-- include: transition
-- include: conversation
local due = redis.call('ZRANGE', KEYS[4], '-inf', seconds(now_ms), 'BYSCORE', 'LIMIT', 0, items)
for _, member in ipairs(due) do
  redis.call('ZREM', KEYS[4], member)
  local info = cjson.decode(member)
  note('request_expired', info.rqId, { k = info.cnId })
end
journal_append('conversations')
return { #due }
