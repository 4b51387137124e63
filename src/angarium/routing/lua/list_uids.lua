#!lua flags=no-writes
-- Guarantee: the state of every registered instance at one moment.
-- Events: none
-- Repeats: safe
-- include: transition
-- include: attempts
-- include: layout_native
-- include: layout_native_rest
-- include: layout_acapy
local found = {}
for _, uid in ipairs(layout.uids()) do
  found[#found + 1] = uid
  found[#found + 1] = layout.silent_ms(uid) or -1
  found[#found + 1] = layout.size(uid)
  found[#found + 1] = layout.has_mail(uid) and 1 or 0
  found[#found + 1] = layout.live(uid) and 1 or 0
end
return reply.listed(redis.call('ZCOUNT', mail_key, 0, below(BAND)), found)
