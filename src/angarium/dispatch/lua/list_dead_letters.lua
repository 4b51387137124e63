#!lua flags=no-writes
-- Guarantee: dead letters after the entry `after` and up to the entry `until_id`, oldest first, with
-- the first bytes of their payloads. After `reply_bytes_max` bytes no more are returned; `more` says
-- whether there are any.
-- Events: none, it only reads
-- Repeats: safe
-- include: transition
-- Entries are read in parts: all of them together may take too much memory.
local PART = 25
local rows, taken, bytes, start = {}, 0, 0, after == '' and '-' or '(' .. after
while taken < letters_max and bytes < reply_bytes_max do
  local wanted = math.min(PART, letters_max - taken)
  local part = redis.call('XRANGE', dead_key, start, until_id, 'COUNT', wanted)
  for _, entry in ipairs(part) do
    if bytes >= reply_bytes_max then break end
    local fields = {}
    for f = 1, #entry[2], 2 do fields[entry[2][f]] = entry[2][f + 1] end
    local payload = fields.payload and string.sub(fields.payload, 1, payload_bytes_max) or ''
    local r = #rows
    rows[r + 1], rows[r + 2], rows[r + 3] = entry[1], fields.message_id, fields.deliveries
    rows[r + 4], rows[r + 5] = fields.reasons, payload
    rows[r + 6], rows[r + 7] = fields.payload and #fields.payload or -1, fields.queue or ''
    taken, bytes, start = taken + 1, bytes + #payload + #fields.reasons, '(' .. entry[1]
  end
  if #part < wanted then return reply.letters(0, rows) end
end
return reply.letters(1, rows)
