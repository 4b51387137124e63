#!lua flags=no-writes
-- Guarantee: returns the oldest messages of keys that the instance owns, in order; they stay in their
-- lists until finished. Returns the first whatever its size, the others within bytes_max.
-- KEYS: 3 owners; per item: list
-- ARGV: 4 uid, 5 bytes_max, 6 number of items; per item: key, messages_max
-- Returns: per item a list of messages | 'not_owner' | 'later' (the bytes were used up)
-- Events: none
-- Repeats: safe
-- include: transition
local uid, bytes_left = ARGV[4], tonumber(ARGV[5])
local items, replies, first, owners = tonumber(ARGV[6]), {}, true, {}
for start = 1, items, 1000 do
  local wanted = {}
  for item = start, math.min(items, start + 999) do wanted[#wanted + 1] = ARGV[5 + 2 * item] end
  for _, owner in ipairs(redis.call('HMGET', KEYS[3], unpack(wanted))) do owners[#owners + 1] = owner end
end
for item = 1, items do
  local messages_max = tonumber(ARGV[6 + 2 * item])
  if owners[item] ~= uid then
    replies[item] = 'not_owner'
  elseif bytes_left <= 0 then
    replies[item] = 'later'
  else
    local messages = {}
    for place = 0, messages_max - 1 do
      local message = redis.call('LINDEX', KEYS[3 + item], place)
      if not message or (not first and #message > bytes_left) then break end
      messages[place + 1] = message
      bytes_left, first = bytes_left - #message, false
    end
    if #messages == 0 and redis.call('EXISTS', KEYS[3 + item]) == 1 then
      replies[item], bytes_left = 'later', 0
    else
      replies[item] = messages
    end
  end
end
return replies
