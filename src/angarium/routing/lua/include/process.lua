-- The body of `process_payload_recip_key`, for either layout.
local items = tonumber(ARGV[9])

-- Looked up together: a call into Redis costs as much as the look itself.
for start = 1, items, 1000 do
  local wanted = {}
  for item = start, math.min(items, start + 999) do wanted[#wanted + 1] = ARGV[7 + 3 * item] end
  for i, uid in ipairs(redis.call('HMGET', owners_key, unpack(wanted))) do owners[wanted[i]] = uid end
end

local statuses, quoted = {}, {}
for item = 1, items do
  local place = 7 + 3 * item
  local key, id = ARGV[place], ARGV[place + 1]
  local uid = put(key, KEYS[8 + item], ARGV[place + 2])
  -- Ids are ours and need no quoting.
  quoted[uid] = quoted[uid] or '","o":' .. cjson.encode(uid) .. ',"k":'
  note_row('{"e":"accepted","s":"' .. id .. quoted[uid] .. cjson.encode(key) .. '}')
  statuses[item] = uid == '' and 'kept' or 'queued'
end
close_book()
return statuses
