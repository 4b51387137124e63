#!lua
-- Guarantee: removes results that are older than `keep_ms`, except those that a consumer group of the
-- stream has not read or not acknowledged. A call removes a limited number; later calls go on.
-- Events: none, the journal has the record of each message
-- Repeats: safe
-- include: transition
local function before(a, b)
  local a_ms, a_n = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_n = string.match(b, '^(%d+)-(%d+)$')
  if a_ms ~= b_ms then return tonumber(a_ms) < tonumber(b_ms) end
  return tonumber(a_n) < tonumber(b_n)
end
if redis.call('EXISTS', results_key) == 0 then return reply.trimmed(0) end
local first = string.format('%.0f-0', math.max(0, now_ms - keep_ms))
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', results_key)) do
  local group = {}
  for i = 1, #flat, 2 do group[flat[i]] = flat[i + 1] end
  local needed = group['last-delivered-id']
  local oldest_pending = redis.call('XPENDING', results_key, group['name'])[2]
  if oldest_pending and before(oldest_pending, needed) then needed = oldest_pending end
  if before(needed, first) then first = needed end
end
return reply.trimmed(redis.call('XTRIM', results_key, 'MINID', '~', first, 'LIMIT', entries_max))
