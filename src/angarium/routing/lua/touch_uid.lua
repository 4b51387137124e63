#!lua
-- Guarantee: the instance is registered and was heard of now; one that had been removed is back.
-- KEYS: 3 counts, 4 iterator, 5 keys by instance, 6 owners, 7 last access, 8 mail
-- ARGV: 4-8 as in the book; 9 uid
-- Returns: {'touched'} | {'registered'} | {'full'}
-- Events: registered
-- Repeats: safe
-- include: transition
-- include: native
-- include: acapy
local uid = ARGV[9]
if book.known(uid) then
  book.touch(uid)
  return { 'touched' }
end
if not book.register(uid) then return { 'full' } end
note('registered', uid, { o = uid })
close_book()
return { 'registered' }
