#!lua
-- Guarantee: removes an instance; its keys lose their owner, with the messages kept for the next one.
-- A live instance is removed only by force, and registers again by itself if it still runs.
-- Events: forgotten, removed
-- Repeats: safe
-- include: transition
-- include: attempts
-- include: layout_native
-- include: layout_native_rest
-- include: layout_acapy
-- include: assignment
local replies = each_item(function(uid, force)
  if not layout.known(uid) then return reply.unknown end
  if not force and not is_silent(uid) then return reply.live end
  if forget_uid(uid) then return reply.more end
  return reply.removed
end)
write_changes()
return replies
