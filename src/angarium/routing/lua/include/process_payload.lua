-- The body of `process_payload_recip_key`, for both layouts.
read_owners(item_column(1))

local quoted = {}
local replies = each_item(function(recip_key, message_id, message, list_key)
  local uid = append_message(recip_key, list_key, message, key_messages_max)
  if not uid then return reply.full end
  -- Ids are our own and need no quoting.
  quoted[uid] = quoted[uid] or '","o":' .. cjson.encode(uid) .. ',"k":'
  note_row('{"e":"accepted","s":"' .. message_id .. quoted[uid] .. cjson.encode(recip_key) .. '}')
  return uid == '' and reply.kept or reply.queued
end)
write_changes()
return replies
