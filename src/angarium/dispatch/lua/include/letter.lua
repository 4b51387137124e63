-- The dead letter under an entry id, or nil. Redis would read half an id as one of many, and
-- refuse nonsense with an error, when letters before it in the batch are dealt with already.
local function letter_at(dead_key, entry_id)
  local found = redis.pcall('XRANGE', dead_key, entry_id, entry_id)
  local entry = not found.err and found[1]
  if entry and entry[1] == entry_id then return entry end
  return nil
end
