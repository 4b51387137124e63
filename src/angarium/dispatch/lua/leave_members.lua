#!lua flags=allow-oom
-- Guarantee: the member is removed from the list.
-- Events: none
-- Repeats: safe, the second call answers 'unknown'
-- include: transition
redis.call('LREM', members_key, 0, member)
if redis.call('ZREM', seen_key, member) == 1 then return reply.left end
return reply.unknown
