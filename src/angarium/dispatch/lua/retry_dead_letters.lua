#!lua
-- Guarantee: a dead letter becomes pending again, once, with no delivery counted.
-- KEYS: 3 dead letters (stream), 4 pending (zset), 5 payloads (hash), 6 attempts (hash)
-- ARGV: 4 ack_timeout_ms, 5 number of dead letters, then their entry ids
-- Returns: for each 'retried' | 'unknown' | 'unusable' Redis has no payload
-- Events: retried
-- Repeats: safe, the second call answers 'unknown'
-- include: transition
-- include: dead_letter_entry
local statuses = {}
for i = 1, tonumber(ARGV[5]) do
  local entry = dead_letter_entry(KEYS[3], ARGV[5 + i])
  local fields = {}
  if entry then
    for f = 1, #entry[2], 2 do fields[entry[2][f]] = entry[2][f + 1] end
  end
  if not entry then
    statuses[i] = 'unknown'
  elseif not fields.payload then
    statuses[i] = 'unusable'
  else
    local id = fields.message_id
    redis.call('HSET', KEYS[5], id, fields.payload)
    redis.call('HSET', KEYS[6], id, 0)
    redis.call('ZADD', KEYS[4], string.format('%.0f', now_ms - tonumber(ARGV[4])), id)
    redis.call('XDEL', KEYS[3], entry[1])
    note('retried', id)
    statuses[i] = 'retried'
  end
end
journal_append('dispatch')
return statuses
