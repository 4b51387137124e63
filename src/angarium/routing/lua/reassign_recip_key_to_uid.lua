#!lua
-- Guarantee: a key moves from the instance named to the next live one, with its pending count;
-- an instance that has lost its last key is removed.
-- KEYS: 3 counts, 4 iterator, 5 keys by instance, 6 owners, 7 last access, 8 mail
-- ARGV: 4-8 as in the book; 9 number of items; per item: old uid, key
-- Returns: per item {'reassigned', uid} | {'not_owner'} | {'nobody'}
-- Events: reassigned, removed
-- Repeats: safe, idempotent by key and old owner
-- include: transition
-- include: native
-- include: acapy
-- include: keys
local replies = {}
for item = 1, tonumber(ARGV[9]) do
  local old, key = ARGV[8 + 2 * item], ARGV[9 + 2 * item]
  if owner_of(key) ~= old then
    replies[item] = { 'not_owner' }
  else
    local new = reassign_recip_key_to_uid(old, key)
    replies[item] = new and { 'reassigned', new } or { 'nobody' }
    if new and book.size(old) == 0 then
      book.remove(old)
      note('removed', old, { o = old })
    end
  end
end
close_book()
return replies
