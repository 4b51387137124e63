#!lua
-- Guarantee: records a heartbeat of the instance; registers it if it is unknown or was removed. Only
-- the process that started last is the instance.
-- Events: registered
-- Repeats: safe
-- include: transition
-- include: attempts
-- include: layout_native
-- include: layout_native_rest
-- include: layout_acapy
-- A process that starts takes over what an earlier one of the same uid had in hand.
local function start(uid, session, starting)
  if session ~= '' then redis.call('HSET', sessions_key, uid, session) end
  for _, key in ipairs(starting and layout.in_hand_keys(uid) or {}) do
    lost_in_hand(key)
    if layout_name ~= 'acapy' or count_of(uid, key) >= 1 then layout.ready(uid, key) end
  end
end

local replies = each_item(function(uid, session, starting)
  local known = layout.known(uid)
  local other = not starting and redis.call('HGET', sessions_key, uid)
  if known and other and other ~= session then return reply.superseded end
  if not known and not layout.register(uid) then return reply.full end
  if known then layout.touch(uid) else note('registered', uid, { o = uid }) end
  if starting or not other then start(uid, session, starting) end
  return known and reply.touched or reply.registered
end)
write_changes()
return replies
