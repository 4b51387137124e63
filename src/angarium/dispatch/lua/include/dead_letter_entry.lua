-- The stream entry of a dead letter, or nil. XRANGE takes an incomplete id as a range. For an
-- invalid id it raises an error, after the script has changed earlier items of the batch.
local function dead_letter_entry(dead_key, entry_id)
  local found = redis.pcall('XRANGE', dead_key, entry_id, entry_id)
  local entry = not found.err and found[1]
  if entry and entry[1] == entry_id then return entry end
  return nil
end
