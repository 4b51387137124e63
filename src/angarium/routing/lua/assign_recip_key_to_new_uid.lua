#!lua
-- Guarantee: a key without an owner gets one, with the messages kept for it. A key with an owner
-- keeps it.
-- Events: assigned
-- Repeats: safe, idempotent by key
-- include: transition
-- include: attempts
-- include: layout_native
-- include: layout_native_rest
-- include: layout_acapy
-- include: assignment
local replies = each_item(function(recip_key)
  local owner = owner_of(recip_key)
  if owner then return reply.owned(owner) end
  local uid = assign_recip_key_to_new_uid(recip_key)
  return uid and reply.assigned(uid) or reply.nobody
end)
write_changes()
return replies
