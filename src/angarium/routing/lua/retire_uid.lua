#!lua
-- Guarantee: the instance counts as silent from now on, so its keys move as soon as there is
-- mail for one of them; without keys it is removed.
-- KEYS: 3 counts, 4 iterator, 5 keys by instance, 6 owners, 7 last access, 8 mail
-- ARGV: 4-8 as in the book; 9 uid
-- Returns: {'retired'} | {'removed'} | {'unknown'}
-- Events: retired, removed
-- Repeats: safe
-- include: transition
-- include: native
-- include: acapy
local uid = ARGV[9]
if not book.known(uid) then return { 'unknown' } end
local status = 'retired'
if book.size(uid) == 0 then
  book.remove(uid)
  status = 'removed'
else
  book.retire(uid)
end
note(status, uid, { o = uid })
close_book()
return { status }
