#!lua
-- Guarantee: a reader's position only moves forward, and the journal is trimmed only up to the
-- position of the slowest reader. A position of '' registers the reader without moving it. The
-- journal is full no longer once it is three quarters of its limit.
-- Events: none
-- Repeats: safe
-- include: transition
-- include: stream_id
local position = redis.call('HGET', readers_key, reader) or '0-0'
if entry_id ~= '' and id_before(position, entry_id) then position = entry_id end
redis.call('HSET', readers_key, reader, position)
local slowest = position
for _, other in ipairs(redis.call('HVALS', readers_key)) do
  if id_before(other, slowest) then slowest = other end
end
-- '~' frees only whole nodes of the stream, which is cheap; a few entries that all have read stay.
redis.call('XTRIM', KEYS[1], 'MINID', '~', slowest)
redis.call('HSET', KEYS[2], 'readers', redis.call('HLEN', readers_key))
local full = tonumber(redis.call('HGET', KEYS[2], 'full') or 0)
if full > 0 then
  local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
  local bytes = tonumber(redis.call('HGET', KEYS[2], 'bytes') or 0)
  local used = first and bytes - (tonumber(first[2][14]) or bytes) or 0
  if used <= full * 3 / 4 then redis.call('HDEL', KEYS[2], 'full') end
end
return reply.committed(position)
