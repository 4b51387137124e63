#!lua
-- Guarantee: moves a dead letter to the end of its key's list, as a new message, or changes nothing.
-- Events: accepted, assigned, reassigned, removed
-- Repeats: safe, a second call returns unknown
-- include: transition
-- include: attempts
-- include: layout_native
-- include: layout_native_rest
-- include: layout_acapy
-- include: assignment
local function assigning()
  return { assign = assign_recip_key_to_new_uid, move = owner_after_move }
end
-- include: append_message
local function message_in(entry, key)
  local good, found = pcall(cjson.decode, entry)
  if not good or type(found) ~= 'table' or found.recip_key ~= key then return nil end
  local message = found.message
  return type(message) == 'string' and pcall(cjson.decode, message) and message or nil
end

local replies = each_item(function(recip_key, message_id, entry, list_key)
  local message = message_in(entry, recip_key)
  if not message then return reply.unreadable end
  if redis.call('LREM', dead_key, 1, entry) == 0 then return reply.unknown end
  local uid = append_message(recip_key, list_key, message)
  -- finish_messages writes the event for a message of a published relay, as the first time.
  if not acapy_layout or string.sub(message, 1, 12) == '{"payload":"' then
    note('accepted', message_id, { k = recip_key, o = uid, d = 'revived' })
  end
  return uid == '' and reply.kept or reply.queued
end)
write_changes()
return replies
