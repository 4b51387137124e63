#!lua flags=no-writes
-- Guarantee: returns only reports that are not older than the time to live.

-- KEYS: 3 processes (hash: «role@actor» -> «ms:report»)
-- ARGV: 4 ttl_ms
-- Returns: {ms, report, ms, report, …}
-- Events: none
-- Repeats: safe
-- include: transition
local oldest_ms = now_ms - tonumber(ARGV[4])
local found = {}
for _, value in ipairs(redis.call('HVALS', KEYS[3])) do
  local at_ms, report = string.match(value, '^(%d+):(.*)$')
  if at_ms and tonumber(at_ms) >= oldest_ms then
    found[#found + 1] = at_ms
    found[#found + 1] = report
  end
end
return found
