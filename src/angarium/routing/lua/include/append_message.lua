-- Appends a message to the list of its key, counts it for the owner and notifies the owner. Needs
-- `assigning`, a function that returns those that assign a key and that move one from a silent owner.
local acapy_layout, is_active = layout_name == 'acapy', {}

local function owner_for(key)
  local uid = owner_of(key)
  if not uid then return assigning().assign(key) end
  local active = is_active[uid]
  if active == nil then
    active = not is_silent(uid)
    is_active[uid] = active
  end
  return active and uid or assigning().move(key, uid)
end

-- Returns the owner, or '' without one; nil and no change if the list has `messages_max` already.
local function append_message(key, list, message, messages_max)
  if redis.call('RPUSH', list, message) > (messages_max or math.huge) then
    redis.call('RPOP', list)
    return nil
  end
  local uid = owner_for(key) or ''
  if redis.call('HINCRBY', counts_key, uid .. '_' .. key, 1) == 1 then
    layout.ready(uid, key)
  elseif acapy_layout and uid ~= '' then
    woken[uid] = true
  end
  return uid
end
