#!lua
-- Guarantee: moves a dead letter to the end of its key's list, as a new message, or changes nothing.
-- KEYS: 3 counts, 4 iterator, 5 keys by instance, 6 owners, 7 last access, 8 mail; per item: list,
-- dead letters
-- ARGV: 4-8 as in include/layout_native; 9 number of items; per item: key, message id, dead letter as
-- stored
-- Returns: per item 'queued' | 'kept' (no instance is registered; the first one gets it) | 'unknown'
-- (it is no dead letter any more) | 'unreadable' (it stays a dead letter)
-- Events: accepted, assigned, reassigned, removed
-- Repeats: safe, a second call returns unknown
-- include: transition
-- include: layout_native
-- include: layout_acapy
-- include: assignment
-- include: append_message
local function message_in(entry, key)
  local good, found = pcall(cjson.decode, entry)
  if not good or type(found) ~= 'table' or found.recip_key ~= key then return nil end
  local message = found.message
  return type(message) == 'string' and pcall(cjson.decode, message) and message or nil
end

local statuses = {}
for item = 1, tonumber(ARGV[9]) do
  local place = 7 + 3 * item
  local key, id, entry = ARGV[place], ARGV[place + 1], ARGV[place + 2]
  local message = message_in(entry, key)
  if not message then
    statuses[item] = 'unreadable'
  elseif redis.call('LREM', KEYS[8 + 2 * item], 1, entry) == 0 then
    statuses[item] = 'unknown'
  else
    local uid = append_message(key, KEYS[7 + 2 * item], message)
    -- finish_messages writes the event for a message of a published relay, as the first time.
    if not acapy_layout or string.sub(message, 1, 12) == '{"payload":"' then
      note('accepted', id, { k = key, o = uid, d = 'revived' })
    end
    statuses[item] = uid == '' and 'kept' or 'queued'
  end
end
write_changes()
return statuses
