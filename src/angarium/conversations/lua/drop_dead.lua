#!lua
-- Guarantee: a dead reply is removed.
-- Events: none; its end was its cancellation
-- Repeats: safe, the second call returns 'gone'
return each_item(function(response_id, member, dead_reply_key)
  redis.call('DEL', dead_reply_key)
  return redis.call('ZREM', dead_key, member) == 1 and reply.dropped or reply.gone
end)
