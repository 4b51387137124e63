#!lua flags=no-writes
-- Guarantee: the newest results, newest first: message, consumer, and the first bytes of the first
-- fields.
-- Events: none, it only reads
-- Repeats: safe
-- include: transition
-- Entries are read in parts: all of them together may take too much memory.
local PART, FIELDS, BYTES = 10, 8, 200
local rows, taken, until_id = {}, 0, '+'
while taken < results_max do
  local wanted = math.min(PART, results_max - taken)
  local part = redis.call('XREVRANGE', results_key, until_id, '-', 'COUNT', wanted)
  for _, entry in ipairs(part) do
    local message_id, consumer, shown = '', '', {}
    for f = 1, #entry[2], 2 do
      local name, value = entry[2][f], entry[2][f + 1]
      if name == 'message_id' then
        message_id = value
      elseif name == 'consumer_id' then
        consumer = value
      elseif #shown < FIELDS then
        shown[#shown + 1] = string.sub(name, 1, BYTES) .. '\0' .. string.sub(value, 1, BYTES)
      end
    end
    local r = #rows
    rows[r + 1], rows[r + 2], rows[r + 3] = entry[1], message_id, consumer
    rows[r + 4] = table.concat(shown, '\0')
    until_id = '(' .. entry[1]
  end
  taken = taken + #part
  if #part < wanted then break end
end
return reply.results(rows)
