#!lua
-- Guarantee: the instance counts as silent from now on, so its keys move as soon as a message waits
-- for one of them. An instance without keys is removed.
-- KEYS: 3 counts, 4 iterator, 5 keys by instance, 6 owners, 7 last access, 8 mail
-- ARGV: 4-8 as in include/layout_native; 9 uid
-- Returns: {'retired'} | {'removed'} | {'unknown'}
-- Events: retired, removed
-- Repeats: safe
-- include: transition
-- include: layout_native
-- include: layout_acapy
local uid = ARGV[9]
if not layout.known(uid) then return { 'unknown' } end
local status = 'retired'
if layout.size(uid) == 0 then
  layout.remove(uid)
  status = 'removed'
else
  layout.retire(uid)
end
note(status, uid, { o = uid })
write_changes()
return { status }
