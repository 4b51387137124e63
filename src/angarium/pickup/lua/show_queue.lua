#!lua flags=no-writes
-- Guarantee: a consistent snapshot of one queue: its pending messages in Redis, the sending ones, the
-- oldest pending sequence in Redis or '', whether its session is live, and its hash.
-- Events: none
-- Repeats: safe
-- include: transition
-- include: queue
local gateway = call('HGET', meta_key, 'gateway')
return reply.shown(call('ZCARD', pending_key), call('ZCARD', sending_key),
  call('ZRANGE', pending_key, 0, 0, 'WITHSCORES')[2] or '',
  gateway and alive(gateways_key, gateway, {}) and 1 or 0, call('HGETALL', meta_key))
