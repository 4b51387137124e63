-- The body of `process_payload_recip_key`, for both layouts.
local items = tonumber(ARGV[9])

-- Reads the owners together: one call for many costs little more than one for each.
for start = 1, items, 1000 do
  local wanted = {}
  for item = start, math.min(items, start + 999) do wanted[#wanted + 1] = ARGV[7 + 3 * item] end
  for i, uid in ipairs(redis.call('HMGET', owners_key, unpack(wanted))) do owners[wanted[i]] = uid end
end

local statuses, quoted = {}, {}
for item = 1, items do
  local place = 7 + 3 * item
  local key, id = ARGV[place], ARGV[place + 1]
  local uid = append_message(key, KEYS[8 + item], ARGV[place + 2])
  -- Ids are our own and need no quoting.
  quoted[uid] = quoted[uid] or '","o":' .. cjson.encode(uid) .. ',"k":'
  note_row('{"e":"accepted","s":"' .. id .. quoted[uid] .. cjson.encode(key) .. '}')
  statuses[item] = uid == '' and 'kept' or 'queued'
end
write_changes()
return statuses
