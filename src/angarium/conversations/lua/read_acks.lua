#!lua flags=no-writes
-- Guarantee: the reply that a client acknowledges by this id, while the reply waits for its ACK.
-- Events: none
-- Repeats: safe
return each_item(function(async_request_id, ack_key)
  local member = redis.call('GET', ack_key)
  return member and reply.found(member) or reply.unknown
end)
