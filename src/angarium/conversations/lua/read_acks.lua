#!lua flags=no-writes
-- Guarantee: the reply that a client acknowledges by this id, while the reply waits for its ACK.
-- KEYS: 3–6 as in the include; per item: ack
-- ARGV: 4–11 as in the include, 12 number of items
-- Returns: per item {'found', MinMessageInfo} | {'unknown'}
-- Events: none
-- Repeats: safe
-- include: transition
-- include: conversation
local answers = {}
for item = 1, items do
  local member = redis.call('GET', KEYS[6 + item])
  answers[item] = member and { 'found', member } or { 'unknown' }
end
return answers
