#!lua flags=no-writes
-- Guarantee: the counters of the last intervals of one level, including the current interval.
-- Events: none
-- Repeats: safe
-- include: transition
local stem = ({ fine = stats_fine_stem, medium = stats_medium_stem, coarse = stats_coarse_stem })[level]
local newest_s = math.floor(now_ms / 1000 / interval_s) * interval_s
local found = {}
for number = 0, intervals - 1 do
  local start = string.format('%.0f', newest_s - number * interval_s)
  local fields = redis.call('HGETALL', stem .. start)
  if #fields > 0 then
    found[#found + 1] = start
    found[#found + 1] = fields
  end
end
return reply.found(found)
