#!lua
-- Guarantee: leases each message to one deliverer at a time. Expired leases come first; due retries and
-- new messages share the rest.
-- Events: none
-- Repeats: no, the messages of a lost reply come back when their leases expire
-- include: transition
local found, bytes = {}, 0

local function lease_message(message)
  bytes = bytes + #message
  local lease = string.format('%.0f', redis.call('HINCRBY', taken_key, 'last', 1))
  redis.call('HSET', taken_key, lease, message)
  redis.call('ZADD', leases_key, now_ms + lease_ms, lease)
  found[#found + 1] = lease
  found[#found + 1] = message
end

local expired = redis.call('ZRANGEBYSCORE', leases_key, '-inf', now_ms, 'LIMIT', 0, messages_max)
for _, lease in ipairs(expired) do
  if bytes >= bytes_max then break end
  local message = redis.call('HGET', taken_key, lease)
  redis.call('HDEL', taken_key, lease)
  redis.call('ZREM', leases_key, lease)
  if message then lease_message(message) end
end

local function lease_retries(retries_max)
  if retries_max <= 0 then return end
  for _, message in ipairs(redis.call('ZRANGEBYSCORE', retries_key, '-inf', now_ms / 1000,
      'LIMIT', 0, retries_max)) do
    if bytes >= bytes_max then return end
    redis.call('ZREM', retries_key, message)
    lease_message(message)
  end
end

-- Retries get half of the space at first, so that they can't keep new messages waiting for ever.
lease_retries(math.ceil((messages_max - #found / 2) / 2))
while #found / 2 < messages_max and bytes < bytes_max do
  local message = redis.call('LPOP', outbound_key)
  if not message then break end
  lease_message(message)
end
lease_retries(messages_max - #found / 2)
return reply.taken(found)
