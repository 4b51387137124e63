#!lua
-- Guarantee: the next term is greater than the given one; the counter never decreases.
-- Events: none
-- Repeats: safe
-- include: transition
if (tonumber(redis.call('GET', term_key)) or 0) >= term then return reply.greater end
redis.call('SET', term_key, string.format('%.0f', term))
return reply.raised
