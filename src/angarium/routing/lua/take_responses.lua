#!lua
-- Guarantee: gives each response to one relay: in a shared list to the relay of its call.
-- KEYS: 3 list
-- ARGV: 4 the beginning of this relay's call ids, or '' for a list of its own, 5 responses_max
-- Returns: responses, oldest first
-- Events: none, a response is not a message
-- Repeats: no, the callers of a lost reply run into their time-out
-- include: transition
local responses_max = tonumber(ARGV[5])
if ARGV[4] == '' then return redis.call('LPOP', KEYS[3], responses_max) or {} end
local found = {}
for _, response in ipairs(redis.call('LRANGE', KEYS[3], 0, responses_max - 1)) do
  if string.find(response, ARGV[4], 1, true) then
    redis.call('LREM', KEYS[3], 1, response)
    found[#found + 1] = response
  end
end
-- Responses for relays that have ended would stay for ever.
redis.call('LTRIM', KEYS[3], -responses_max, -1)
return found
