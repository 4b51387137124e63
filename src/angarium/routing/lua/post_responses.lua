#!lua
-- Guarantee: appends a response to the list of the relay whose caller waits, and notifies the relay.
-- KEYS: per item: list
-- ARGV: 4 wake channel, 5 expires_ms or 0, 6 number of items; per item: relay, response
-- Returns: per item 'posted'
-- Events: none, a response is not a message
-- Repeats: safe, the relay drops a second response to a call
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
