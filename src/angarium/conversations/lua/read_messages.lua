#!lua flags=no-writes
-- Guarantee: requests and replies as they are stored, at one moment.
-- KEYS: 3–6 as in the include; per item: request or response
-- ARGV: 4–11 as in the include, 12 number of items
-- Returns: per item {field, value, …}; empty if the message does not exist or has expired
-- Events: none
-- Repeats: safe
-- include: transition
-- include: conversation
local answers = {}
for item = 1, items do
  local expires = redis.call('HGET', KEYS[6 + item], 'expiresAtTS')
  local live = expires and tonumber(expires) * 1000 > now_ms
  answers[item] = live and redis.call('HGETALL', KEYS[6 + item]) or {}
end
return answers
