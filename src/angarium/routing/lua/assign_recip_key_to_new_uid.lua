#!lua
-- Guarantee: a key without an owner gets one, with the messages kept for it. A key with an owner
-- keeps it.
-- KEYS: 3 counts, 4 iterator, 5 keys by instance, 6 owners, 7 last access, 8 mail
-- ARGV: 4-8 as in include/layout_native; 9 number of items; per item: key
-- Returns: per item {'assigned', uid} | {'owned', uid} | {'nobody'}
-- Events: assigned
-- Repeats: safe, idempotent by key
-- include: transition
-- include: layout_native
-- include: layout_acapy
-- include: assignment
local replies = {}
for item = 1, tonumber(ARGV[9]) do
  local key = ARGV[9 + item]
  local owner = owner_of(key)
  if owner then
    replies[item] = { 'owned', owner }
  else
    local uid = assign_recip_key_to_new_uid(key)
    replies[item] = uid and { 'assigned', uid } or { 'nobody' }
  end
end
write_changes()
return replies
