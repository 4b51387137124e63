#!lua flags=no-writes
-- Guarantee: the reply that a client acknowledges by this id, while an ACK is waited for.
-- KEYS: 3 pendingMessages, 4 openRequests, 5 newMessages; per item: ack
-- ARGV: 4–10 as in the include, 11 number of items
-- Returns: per item {'found', MinMessageInfo} | {'unknown'}
-- Events: none
-- Repeats: safe
-- include: transition
-- include: conversation
local answers = {}
for item = 1, items do
  local member = redis.call('GET', KEYS[5 + item])
  answers[item] = member and { 'found', member } or { 'unknown' }
end
return answers
