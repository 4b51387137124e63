#!lua
-- Guarantee: records a heartbeat of the instance; registers it if it is unknown or was removed.
-- Events: registered
-- Repeats: safe
-- include: transition
-- include: layout_native
-- include: layout_acapy
local replies = each_item(function(uid)
  if layout.known(uid) then
    layout.touch(uid)
    return reply.touched
  end
  if not layout.register(uid) then return reply.full end
  note('registered', uid, { o = uid })
  return reply.registered
end)
write_changes()
return replies
