#!lua
-- Guarantee: gives each response to one relay: in a shared list to the relay of its call.
-- Events: none, a response is not a message
-- Repeats: no, the callers of a lost reply run into their time-out
-- include: transition
if not in_shared_list then
  return reply.taken(redis.call('LPOP', responses_key, responses_max) or {})
end
local found = {}
for _, response in ipairs(redis.call('LRANGE', shared_key, 0, responses_max - 1)) do
  -- The ids of a relay's calls begin with its own id.
  if string.find(response, relay .. '.', 1, true) then
    redis.call('LREM', shared_key, 1, response)
    found[#found + 1] = response
  end
end
-- Responses for relays that have ended would stay for ever.
redis.call('LTRIM', shared_key, -responses_max, -1)
return reply.taken(found)
