#!lua flags=allow-oom
-- Guarantee: stores a process's newest report, and removes expired reports of others. An empty
-- report withdraws the one before.
-- Events: none, a report changes no state
-- Repeats: safe
-- include: transition
if report == '' then
  redis.call('HDEL', processes_key, process)
  return reply.withdrawn
end
local value = string.format('%.0f', now_ms) .. ':' .. report
if redis.call('HSET', processes_key, process, value) == 0 then return reply.reported end
-- Only new processes add fields, so it is enough that each of them removes the expired fields. A
-- scan at every report of a thousand processes would use half of the time of Redis.
local oldest_ms = now_ms - ttl_ms
local all = redis.call('HGETALL', processes_key)
for i = 1, #all, 2 do
  local at_ms = tonumber(string.match(all[i + 1], '^(%d+):'))
  if not at_ms or at_ms < oldest_ms then redis.call('HDEL', processes_key, all[i]) end
end
return reply.reported
