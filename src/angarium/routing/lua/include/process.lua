-- The body of `process_payload_recip_key`, for either layout.
local items, acapy_layout, settled = tonumber(ARGV[9]), ARGV[4] == 'acapy', {}

-- Looked up together: a call into Redis costs as much as the look itself.
for start = 1, items, 1000 do
  local wanted = {}
  for item = start, math.min(items, start + 999) do wanted[#wanted + 1] = ARGV[7 + 3 * item] end
  for i, uid in ipairs(redis.call('HMGET', owners_key, unpack(wanted))) do owners[wanted[i]] = uid end
end

-- Whether a silent owner is stale is asked for each message, for the one before may have made
-- it so. Its other keys move once in a call; each key that is written to moves at once.
local emptied = {}
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

local statuses, quoted = {}, {}
for item = 1, items do
  local place = 7 + 3 * item
  local key, id = ARGV[place], ARGV[place + 1]
  local uid = owner_for(key) or ''
  redis.call('RPUSH', KEYS[8 + item], ARGV[place + 2])
  if redis.call('HINCRBY', counts_key, uid .. '_' .. key, 1) == 1 then
    book.ready(uid, key)
  elseif acapy_layout and uid ~= '' then
    woken[uid] = true
  end
  -- Ids are ours and need no quoting.
  quoted[uid] = quoted[uid] or '","o":' .. cjson.encode(uid) .. ',"k":'
  note_row('{"e":"accepted","s":"' .. id .. quoted[uid] .. cjson.encode(key) .. '}')
  statuses[item] = uid == '' and 'kept' or 'queued'
end
close_book()
return statuses
