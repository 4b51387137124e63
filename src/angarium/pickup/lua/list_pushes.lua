#!lua flags=no-writes
-- Guarantee: lists notifications that are due now, each as hashed token, a space and its queue.
-- Events: none
-- Repeats: safe
-- include: transition
return reply.due(redis.call('ZRANGEBYSCORE', pushes_due_key, '-inf',
  string.format('%.0f', now_ms), 'LIMIT', 0, pushes_max))
