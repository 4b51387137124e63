#!lua
-- Guarantee: only the newest term appends; what an older one sends changes nothing.
-- Events: none
-- Repeats: no, a second call appends again
-- include: transition
-- include: fence
if fenced_off(term_key, term) then return reply.stale_term end
redis.call('RPUSH', list_key, value)
return reply.appended
