#!lua
-- Guarantee: after the reply a message is in the durable intake. An idempotency key adds one
-- message, however often it is sent.
-- KEYS: 3 inbox (stream), then for each message the record of its idempotency key, or of its own
-- id if it has no key (string)
-- ARGV: 4 number of messages, then for each its id, its payload, and the expiry of its record in ms
-- Returns: for each {'enqueued', id} | {'duplicate', id of the first}
-- Events: enqueued
-- Repeats: safe, the record has the id of the same message
-- include: transition
local replies = {}
for i = 1, tonumber(ARGV[4]) do
  local id, payload, record = ARGV[2 + 3 * i], ARGV[3 + 3 * i], KEYS[3 + i]
  local first = redis.call('GET', record)
  if first then
    replies[i] = { first == id and 'enqueued' or 'duplicate', first }
  else
    redis.call('SET', record, id, 'PX', ARGV[4 + 3 * i])
    redis.call('XADD', KEYS[3], '*', 'message_id', id, 'payload', payload)
    note('enqueued', id)
    replies[i] = { 'enqueued', id }
  end
end
journal_append('dispatch')
return replies
