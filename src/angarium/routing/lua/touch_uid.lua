#!lua
-- Guarantee: records a heartbeat of the instance; registers it if it is unknown or was removed.
-- KEYS: 3 counts, 4 iterator, 5 keys by instance, 6 owners, 7 last access, 8 mail
-- ARGV: 4-8 as in include/layout_native; 9 uid
-- Returns: {'touched'} | {'registered'} | {'full'}
-- Events: registered
-- Repeats: safe
-- include: transition
-- include: layout_native
-- include: layout_acapy
local uid = ARGV[9]
if layout.known(uid) then
  layout.touch(uid)
  return { 'touched' }
end
if not layout.register(uid) then return { 'full' } end
note('registered', uid, { o = uid })
write_changes()
return { 'registered' }
