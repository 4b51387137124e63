#!lua flags=no-writes
-- Guarantee: a consistent snapshot of one queue.
-- KEYS: 3 gateways; then the six of the queue
-- ARGV: none
-- Returns: {pending in Redis, sending, removed with a row in the database, oldest pending sequence in
-- Redis or '', 1 if its session is live, name, value, …}; names and values are the queue's hash
-- Events: none
-- Repeats: safe
-- include: transition
-- include: queue
local queue = queue_at(4)
local gateway = call('HGET', queue.meta, 'gateway')
local reply = {
  call('ZCARD', queue.pending), call('ZCARD', queue.sending),
  call('SCARD', queue.removed), call('ZRANGE', queue.pending, 0, 0, 'WITHSCORES')[2] or '',
  gateway and alive(KEYS[3], gateway, {}) and 1 or 0,
}
for _, value in ipairs(call('HGETALL', queue.meta)) do reply[#reply + 1] = value end
return reply
