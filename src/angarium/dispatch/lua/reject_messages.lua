#!lua
-- Guarantee: a rejected message is due again, with the reason stored; after its last delivery it is
-- a dead letter. Without a reason the message is given back: it is due at once, and the delivery is
-- not counted.
-- KEYS: 3 pending (zset), 4 payloads (hash), 5 attempts (hash), 6 dead letters (stream)
-- ARGV: 4 ack_timeout_ms, 5 deliveries_max, 6 number of messages, then for each its id, the
-- reason or '', and the delay in ms before its second delivery, which doubles with each
-- Returns: for each 'requeued' | 'dead' | 'unknown'
-- Events: rejected, returned, dead
-- Repeats: no, each call counts a failure
-- include: transition
-- include: dead_letter
local ack_timeout_ms, deliveries_max = tonumber(ARGV[4]), tonumber(ARGV[5])
local statuses = {}
for i = 1, tonumber(ARGV[6]) do
  local id, reason, delay_ms = ARGV[4 + 3 * i], ARGV[5 + 3 * i], tonumber(ARGV[6 + 3 * i])
  if not redis.call('ZSCORE', KEYS[3], id) then
    statuses[i] = 'unknown'
  else
    local count, reasons = attempts_of(KEYS[5], id)
    statuses[i] = 'requeued'
    if reason == '' then
      redis.call('HSET', KEYS[5], id, math.max(0, count - 1) .. reasons)
      redis.call('ZADD', KEYS[3], string.format('%.0f', now_ms - ack_timeout_ms), id)
      note('returned', id)
    else
      redis.call('HSET', KEYS[5], id, count .. reasons .. '\n' .. reason)
      note('rejected', id, { a = count, d = reason })
      if count >= deliveries_max then
        dead_letter(KEYS[3], KEYS[4], KEYS[5], KEYS[6], id)
        note('dead', id, { a = count })
        statuses[i] = 'dead'
      else
        local wait_ms = math.min(ack_timeout_ms, delay_ms * 2 ^ math.max(0, count - 1))
        redis.call('ZADD', KEYS[3], string.format('%.0f', now_ms - ack_timeout_ms + wait_ms), id)
      end
    end
  end
end
journal_append('dispatch')
return statuses
