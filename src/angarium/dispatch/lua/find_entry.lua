#!lua flags=no-writes
-- Guarantee: the newest entry of the stream whose field `message_id` is this id, among at most
-- `entries_max` entries between `after` and `until_id`, newest first. Otherwise the oldest entry that
-- was read, from which the next call continues; '' at the end of the range.
-- Events: none, it only reads
-- Repeats: safe
-- include: transition
-- Entries are read in parts: all of them together may take too much memory.
local PART = 50
local read, until_part = 0, until_id
while read < entries_max do
  local wanted = math.min(PART, entries_max - read)
  local part = redis.call('XREVRANGE', stream_key, until_part, after, 'COUNT', wanted)
  for _, entry in ipairs(part) do
    local fields = entry[2]
    for f = 1, #fields, 2 do
      if fields[f] == 'message_id' then
        if fields[f + 1] == message_id then return reply.found(entry[1], fields) end
        break
      end
    end
  end
  if #part < wanted then return reply.searched('') end
  read, until_part = read + #part, '(' .. part[#part][1]
end
return reply.searched(string.sub(until_part, 2))
