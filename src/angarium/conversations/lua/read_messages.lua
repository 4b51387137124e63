#!lua flags=no-writes
-- Guarantee: requests and replies as they are stored, at one moment. Without a response id, the item
-- means a request.
-- Events: none
-- Repeats: safe
-- include: transition
return each_item(function(request_id, response_id, request_key, response_key)
  local key = response_id ~= '' and response_key or request_key
  local expires = redis.call('HGET', key, 'expiresAtTS')
  if not expires or tonumber(expires) * 1000 <= now_ms then return reply.unknown end
  return reply.found(redis.call('HGETALL', key))
end)
