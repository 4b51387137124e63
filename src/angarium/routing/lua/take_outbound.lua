#!lua
-- Guarantee: leases each message to one deliverer at a time. Expired leases come first; due retries and
-- new messages share the rest.
-- KEYS: 3 outbound list, 4 retries, 5 taken (hash: lease -> message), 6 leases (by expiry)
-- ARGV: 4 messages_max, 5 lease_ms, 6 bytes_max; the last message may exceed it
-- Returns: lease, message, lease, message, …
-- Events: none
-- Repeats: no, the messages of a lost reply come back when their leases expire
-- include: transition
local messages_max, bytes_max, found, bytes = tonumber(ARGV[4]), tonumber(ARGV[6]), {}, 0

local function lease_message(message)
  bytes = bytes + #message
  local lease = string.format('%.0f', redis.call('HINCRBY', KEYS[5], 'last', 1))
  redis.call('HSET', KEYS[5], lease, message)
  redis.call('ZADD', KEYS[6], now_ms + tonumber(ARGV[5]), lease)
  found[#found + 1] = lease
  found[#found + 1] = message
end

local expired = redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', now_ms, 'LIMIT', 0, messages_max)
for _, lease in ipairs(expired) do
  if bytes >= bytes_max then break end
  local message = redis.call('HGET', KEYS[5], lease)
  redis.call('HDEL', KEYS[5], lease)
  redis.call('ZREM', KEYS[6], lease)
  if message then lease_message(message) end
end

local function lease_retries(retries_max)
  if retries_max <= 0 then return end
  for _, message in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now_ms / 1000,
      'LIMIT', 0, retries_max)) do
    if bytes >= bytes_max then return end
    redis.call('ZREM', KEYS[4], message)
    lease_message(message)
  end
end

-- Retries get half of the space at first, so that they can't keep new messages waiting for ever.
lease_retries(math.ceil((messages_max - #found / 2) / 2))
while #found / 2 < messages_max and bytes < bytes_max do
  local message = redis.call('LPOP', KEYS[3])
  if not message then break end
  lease_message(message)
end
lease_retries(messages_max - #found / 2)
return found
