#!lua flags=allow-oom
-- Guarantee: the list has the members that renewed their entry within ttl_ms, and this one, in the
-- order in which they joined.
-- Events: none
-- Repeats: safe
-- include: transition
-- include: members
redis.call('ZADD', seen_key, string.format('%.0f', now_ms), member)
if not redis.call('LPOS', members_key, member) then redis.call('RPUSH', members_key, member) end
return reply.members(live_members())
