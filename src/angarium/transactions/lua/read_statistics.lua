#!lua flags=no-writes
-- Guarantee: the counters of the last intervals of one level, including the current interval.
-- KEYS: 3 stem of the level
-- ARGV: 4 interval_s, 5 number of intervals
-- Returns: {start_s, {field, value, …}, …}, newest first, without empty intervals
-- Events: none
-- Repeats: safe
-- include: transition
local interval_s = tonumber(ARGV[4])
local newest_s = math.floor(now_ms / 1000 / interval_s) * interval_s
local reply = {}
for number = 0, tonumber(ARGV[5]) - 1 do
  local start = string.format('%.0f', newest_s - number * interval_s)
  local fields = redis.call('HGETALL', KEYS[3] .. start)
  if #fields > 0 then
    reply[#reply + 1] = start
    reply[#reply + 1] = fields
  end
end
return reply
