-- Appends a message to the list of its key, counts it for the owner and notifies the owner.
local acapy_layout, is_active, moved_from = ARGV[4] == 'acapy', {}, {}

-- Checks for each message whether a silent owner is stale: the message before may have made it so.
-- Moves each key that gets a message at once, and the owner's other keys once in a call.
local function owner_for(key)
  local uid = owner_of(key)
  if not uid then return assign_recip_key_to_new_uid(key) end
  local active = is_active[uid]
  if active == nil then
    active = not is_silent(uid)
    is_active[uid] = active
  end
  if active or not is_stale(uid) then return uid end
  local new = reassign_recip_key_to_uid(uid, key)
  if not new then return uid end
  if not moved_from[uid] then
    moved_from[uid] = true
    reassign_uid(uid)
  end
  return new
end

-- Returns the owner, or '' without one.
local function append_message(key, list, message)
  local uid = owner_for(key) or ''
  redis.call('RPUSH', list, message)
  if redis.call('HINCRBY', counts_key, uid .. '_' .. key, 1) == 1 then
    layout.ready(uid, key)
  elseif acapy_layout and uid ~= '' then
    woken[uid] = true
  end
  return uid
end
