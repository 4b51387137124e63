#!lua
-- Guarantee: an id is accepted once; its payload and its place in the order are stored together.
-- KEYS: 3 payloads (hash id -> payload), 4 order (list of ids)
-- ARGV: 4 number of items; per item: id, payload
-- Returns: per item 'accepted' | 'duplicate'
-- Events: accepted (module sample)
-- Repeats: safe, idempotent by id
-- include: transition
local statuses = {}
for item = 1, tonumber(ARGV[4]) do
  local id, payload = ARGV[3 + 2 * item], ARGV[4 + 2 * item]
  if redis.call('HSETNX', KEYS[3], id, payload) == 1 then
    redis.call('RPUSH', KEYS[4], id)
    note('accepted', id)
    statuses[item] = 'accepted'
  else
    statuses[item] = 'duplicate'
  end
end
journal_append('sample')
return statuses
