#!lua
-- Guarantee: moves a key from the named instance to the next live one, with its pending count; removes
-- an instance that has lost its last key.
-- Events: reassigned, removed
-- Repeats: safe, idempotent by key and old owner
-- include: transition
-- include: attempts
-- include: layout_native
-- include: layout_native_rest
-- include: layout_acapy
-- include: assignment
local replies = each_item(function(old_uid, recip_key)
  if owner_of(recip_key) ~= old_uid then return reply.not_owner end
  local new = reassign_recip_key_to_uid(old_uid, recip_key)
  if not new then return reply.nobody end
  if layout.size(old_uid) == 0 then
    layout.remove(old_uid)
    note('removed', old_uid, { o = old_uid })
  end
  return reply.reassigned(new)
end)
write_changes()
return replies
