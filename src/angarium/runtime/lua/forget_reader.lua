#!lua
-- Guarantee: the journal keeps no entries for this reader any more. Without readers it is not full.
-- Events: none
-- Repeats: safe, the second call answers 'unknown'
-- include: transition
if redis.call('HDEL', readers_key, reader) == 0 then return reply.unknown end
local left = redis.call('HLEN', readers_key)
redis.call('HSET', KEYS[2], 'readers', left)
if left == 0 then redis.call('HDEL', KEYS[2], 'full') end
return reply.forgotten
