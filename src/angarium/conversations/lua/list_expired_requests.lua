#!lua flags=no-writes
-- Guarantee: lists requests that expired without a reply.
-- Events: none
-- Repeats: safe
-- include: transition
-- include: conversation
return each_item(function(most)
  return reply.listed(redis.call('ZRANGE', open_key, '-inf', seconds(now_ms), 'BYSCORE', 'LIMIT', 0, most))
end)
