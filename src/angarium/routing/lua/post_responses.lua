#!lua
-- Guarantee: appends a response to the list of the relay whose caller waits, and notifies the relay.
-- Events: none, a response is not a message
-- Repeats: safe, the relay drops a second response to a call
-- include: transition
local woken = {}
local replies = each_item(function(relay, response, list_key)
  if in_shared_list then
    redis.call('RPUSH', shared_key, response)
  else
    redis.call('RPUSH', list_key, response)
    redis.call('PEXPIRE', list_key, expires_ms)
  end
  woken[relay] = true
  return reply.posted
end)
for relay in pairs(woken) do redis.call('PUBLISH', wake .. relay, '') end
return replies
