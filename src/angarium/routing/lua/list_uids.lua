#!lua flags=no-writes
-- Guarantee: the state of every registered instance at one moment.
-- KEYS: 3 counts, 4 iterator, 5 keys by instance, 6 owners, 7 last access, 8 mail
-- ARGV: 4-8 as in include/layout_native
-- Returns: {number of keys without an owner, then per instance: uid, silent_ms or -1, keys, 1 if
-- messages wait for it, 1 if it is live}
-- Events: none
-- Repeats: safe
-- include: transition
-- include: layout_native
-- include: layout_acapy
local found = { redis.call('ZCOUNT', mail_key, 0, below(BAND)) }
for _, uid in ipairs(layout.uids()) do
  found[#found + 1] = uid
  found[#found + 1] = layout.silent_ms(uid) or -1
  found[#found + 1] = layout.size(uid)
  found[#found + 1] = layout.has_mail(uid) and 1 or 0
  found[#found + 1] = layout.live(uid) and 1 or 0
end
return found
