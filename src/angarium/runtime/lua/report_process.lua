#!lua
-- Guarantee: a process's newest report stands beside those of the others that still report.
-- KEYS: 3 processes (hash: «role@actor» -> «ms:report»)
-- ARGV: 4 role@actor, 5 report or '' to withdraw, 6 ttl_ms
-- Returns: {'reported'} | {'withdrawn'}
-- Events: none, figures change nothing
-- Repeats: safe
-- include: transition
if ARGV[5] == '' then
  redis.call('HDEL', KEYS[3], ARGV[4])
  return { 'withdrawn' }
end
local value = string.format('%.0f', now_ms) .. ':' .. ARGV[5]
if redis.call('HSET', KEYS[3], ARGV[4], value) == 0 then return { 'reported' } end
-- The hash grows by newcomers only, so it is enough that each of them clears away the dead: a
-- look through all at every report would cost a thousand processes half of what Redis can do.
local oldest_ms = now_ms - tonumber(ARGV[6])
local all = redis.call('HGETALL', KEYS[3])
for i = 1, #all, 2 do
  local at_ms = tonumber(string.match(all[i + 1], '^(%d+):'))
  if not at_ms or at_ms < oldest_ms then redis.call('HDEL', KEYS[3], all[i]) end
end
return { 'reported' }
