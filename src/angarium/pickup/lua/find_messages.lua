#!lua flags=no-writes
-- Guarantee: reports which messages are in Redis.
-- Events: none
-- Repeats: safe
-- include: transition
return each_item(function(queue, id, messages_key)
  return redis.call('HEXISTS', messages_key, id) == 1 and reply.found or reply.missing
end)
