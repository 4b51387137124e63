#!lua flags=no-writes
-- Guarantee: returns only reports that are not older than the time to live.
-- Events: none
-- Repeats: safe
-- include: transition
local oldest_ms = now_ms - ttl_ms
local rows = {}
for _, value in ipairs(redis.call('HVALS', processes_key)) do
  local at_ms, report = string.match(value, '^(%d+):(.*)$')
  if at_ms and tonumber(at_ms) >= oldest_ms then
    rows[#rows + 1] = at_ms
    rows[#rows + 1] = report
  end
end
return reply.found(rows)
