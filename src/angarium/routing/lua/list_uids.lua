#!lua flags=no-writes
-- Guarantee: every registered instance as it is now.
-- KEYS: 3 counts, 4 iterator, 5 keys by instance, 6 owners, 7 last access, 8 mail
-- ARGV: 4-8 as in the book
-- Returns: {keys that nobody owns, then per instance: uid, silent_ms or -1, keys, 1 if it has mail,
-- 1 if a key may go there}
-- Events: none
-- Repeats: safe
-- include: transition
-- include: native
-- include: acapy
local found = { redis.call('ZCOUNT', mail_key, 0, below(BAND)) }
for _, uid in ipairs(book.uids()) do
  found[#found + 1] = uid
  found[#found + 1] = book.silent_ms(uid) or -1
  found[#found + 1] = book.size(uid)
  found[#found + 1] = book.has_mail(uid) and 1 or 0
  found[#found + 1] = book.live(uid) and 1 or 0
end
return found
