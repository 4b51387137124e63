-- A message to the end of its key's list, counted for the key's owner, who is told.
local acapy_layout, settled, emptied = ARGV[4] == 'acapy', {}, {}

-- Whether a silent owner is stale is asked for each message, for the one before may have made
-- it so. Its other keys move once in a call; each key that is written to moves at once.
local function owner_for(key)
  local uid = owner_of(key)
  if not uid then return assign_recip_key_to_new_uid(key) end
  local active = settled[uid]
  if active == nil then
    active = not is_silent(uid)
    settled[uid] = active
  end
  if active or not is_stale(uid) then return uid end
  local new = reassign_recip_key_to_uid(uid, key)
  if not new then return uid end
  if not emptied[uid] then
    emptied[uid] = true
    reassign_uid(uid)
  end
  return new
end

-- Returns the owner, '' where there is none.
local function put(key, list, message)
  local uid = owner_for(key) or ''
  redis.call('RPUSH', list, message)
  if redis.call('HINCRBY', counts_key, uid .. '_' .. key, 1) == 1 then
    book.ready(uid, key)
  elseif acapy_layout and uid ~= '' then
    woken[uid] = true
  end
  return uid
end
