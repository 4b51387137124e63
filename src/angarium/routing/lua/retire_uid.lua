#!lua
-- Guarantee: the instance counts as silent from now on, so its keys move as soon as a message waits
-- for one of them. An instance without keys is removed.
-- Events: retired, removed
-- Repeats: safe
-- include: transition
-- include: attempts
-- include: session
-- include: layout_native
-- include: layout_native_rest
-- include: layout_acapy
local replies = each_item(function(uid, session)
  if not layout.known(uid) or superseded(uid, session) then return reply.unknown end
  redis.call('HDEL', sessions_key, uid)
  local status = 'retired'
  if layout.size(uid) == 0 then
    layout.remove(uid)
    status = 'removed'
  else
    layout.retire(uid)
  end
  note(status, uid, { o = uid })
  return reply[status]
end)
write_changes()
return replies
