#!lua flags=allow-oom
-- Guarantee: members that did not renew their entry within ttl_ms are removed before the read. The
-- others are in the order in which they joined.
-- Events: none
-- Repeats: safe
-- include: transition
-- include: members
return reply.members(live_members())
