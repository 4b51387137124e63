#!lua
-- Guarantee: stores a process's newest report, and removes expired reports of others.
-- KEYS: 3 processes (hash: «role@actor» -> «ms:report»)
-- ARGV: 4 role@actor, 5 report or '' to withdraw, 6 ttl_ms
-- Returns: {'reported'} | {'withdrawn'}
-- Events: none, a report changes no state
-- Repeats: safe
-- include: transition
if ARGV[5] == '' then
  redis.call('HDEL', KEYS[3], ARGV[4])
  return { 'withdrawn' }
end
local value = string.format('%.0f', now_ms) .. ':' .. ARGV[5]
if redis.call('HSET', KEYS[3], ARGV[4], value) == 0 then return { 'reported' } end
-- Only new processes add fields, so it is enough that each of them removes the expired fields. A
-- scan at every report of a thousand processes would use half of the time of Redis.

local oldest_ms = now_ms - tonumber(ARGV[6])
local all = redis.call('HGETALL', KEYS[3])
for i = 1, #all, 2 do
  local at_ms = tonumber(string.match(all[i + 1], '^(%d+):'))
  if not at_ms or at_ms < oldest_ms then redis.call('HDEL', KEYS[3], all[i]) end
end
return { 'reported' }
