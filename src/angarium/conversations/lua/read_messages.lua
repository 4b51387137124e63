#!lua flags=no-writes
-- Guarantee: requests and replies as they are stored, all of one moment.
-- KEYS: 3 pendingMessages, 4 openRequests, 5 newMessages; per item: request or response
-- ARGV: 4–10 as in the include, 11 number of items
-- Returns: per item {field, value, …}, empty when there is none or its time is over
-- Events: none
-- Repeats: safe
-- include: transition
-- include: conversation
local answers = {}
for item = 1, items do
  local expires = redis.call('HGET', KEYS[5 + item], 'expiresAtTS')
  local live = expires and tonumber(expires) * 1000 > now_ms
  answers[item] = live and redis.call('HGETALL', KEYS[5 + item]) or {}
end
return answers
