#!lua
-- Guarantee: appends the message to the list of its key, counts it for the one owner of the key and
-- notifies the owner, all or nothing. A stale owner loses its keys first. A full list stays as it is.
-- Events: accepted, assigned, reassigned, removed
-- Repeats: no, a second call queues the message again
-- include: transition
-- include: layout_native
-- Most calls find every key with an active owner: the functions that assign are created on first use.
local created
local function assigning()
  if not created then
-- include: attempts
-- include: layout_native_rest
-- include: assignment
    created = { assign = assign_recip_key_to_new_uid, move = owner_after_move }
  end
  return created
end
-- include: append_message
-- include: process_payload
