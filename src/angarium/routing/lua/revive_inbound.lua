#!lua
-- Guarantee: a dead message stands at the end of its key's list as a new one would and is dead no
-- longer, or nothing has changed.
-- KEYS: 3 counts, 4 iterator, 5 keys by instance, 6 owners, 7 last access, 8 mail; per item: list,
-- dead letters
-- ARGV: 4-8 as in the book; 9 number of items; per item: key, message id, letter as it stands
-- Returns: per item 'queued' | 'kept', which waits until an instance registers | 'unknown', when it
-- is dead no longer | 'unreadable', which stays where it is
-- Events: accepted, assigned, reassigned, removed
-- Repeats: safe, the second call finds it gone
-- include: transition
-- include: native
-- include: acapy
-- include: keys
-- include: put
local function message_in(letter, key)
  local good, found = pcall(cjson.decode, letter)
  if not good or type(found) ~= 'table' or found.recip_key ~= key then return nil end
  local message = found.message
  return type(message) == 'string' and pcall(cjson.decode, message) and message or nil
end

local statuses = {}
for item = 1, tonumber(ARGV[9]) do
  local place = 7 + 3 * item
  local key, id, letter = ARGV[place], ARGV[place + 1], ARGV[place + 2]
  local message = message_in(letter, key)
  if not message then
    statuses[item] = 'unreadable'
  elseif redis.call('LREM', KEYS[8 + 2 * item], 1, letter) == 0 then
    statuses[item] = 'unknown'
  else
    local uid = put(key, KEYS[7 + 2 * item], message)
    -- One of a foreign relay is noted when it ends, as it was the first time.
    if not acapy_layout or string.sub(message, 1, 12) == '{"payload":"' then
      note('accepted', id, { k = key, o = uid, d = 'revived' })
    end
    statuses[item] = uid == '' and 'kept' or 'queued'
  end
end
close_book()
return statuses
