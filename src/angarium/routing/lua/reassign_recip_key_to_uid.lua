#!lua
-- Guarantee: moves a key from the named instance to the next live one, with its pending count; removes
-- an instance that has lost its last key.
-- KEYS: 3 counts, 4 iterator, 5 keys by instance, 6 owners, 7 last access, 8 mail
-- ARGV: 4-8 as in include/layout_native; 9 number of items; per item: old uid, key
-- Returns: per item {'reassigned', uid} | {'not_owner'} | {'nobody'}
-- Events: reassigned, removed
-- Repeats: safe, idempotent by key and old owner
-- include: transition
-- include: layout_native
-- include: layout_acapy
-- include: assignment
local replies = {}
for item = 1, tonumber(ARGV[9]) do
  local old, key = ARGV[8 + 2 * item], ARGV[9 + 2 * item]
  if owner_of(key) ~= old then
    replies[item] = { 'not_owner' }
  else
    local new = reassign_recip_key_to_uid(old, key)
    replies[item] = new and { 'reassigned', new } or { 'nobody' }
    if new and layout.size(old) == 0 then
      layout.remove(old)
      note('removed', old, { o = old })
    end
  end
end
write_changes()
return replies
