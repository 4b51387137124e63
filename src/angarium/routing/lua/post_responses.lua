#!lua
-- Guarantee: an answer stands in the list of the relay whose caller waits, and the relay is told.
-- KEYS: per item: list
-- ARGV: 4 wake channel, 5 expires_ms or 0, 6 number of items; per item: relay, answer
-- Returns: per item 'posted'
-- Events: none, an answer is not a message
-- Repeats: safe, a second answer to a call finds nobody waiting
-- include: transition
local statuses, woken = {}, {}
for item = 1, tonumber(ARGV[6]) do
  redis.call('RPUSH', KEYS[2 + item], ARGV[6 + 2 * item])
  if ARGV[5] ~= '0' then redis.call('PEXPIRE', KEYS[2 + item], ARGV[5]) end
  woken[ARGV[5 + 2 * item]] = true
  statuses[item] = 'posted'
end
for relay in pairs(woken) do redis.call('PUBLISH', ARGV[4] .. relay, '') end
return statuses
