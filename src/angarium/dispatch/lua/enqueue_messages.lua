#!lua
-- Guarantee: a message is in the durable intake when this answers, and an idempotency key brings
-- in one message only, however often it is sent.
-- KEYS: 3 inbox (stream), then one for each message: record of its idempotency key, or of its own
-- id when it has none (string)
-- ARGV: 4 number of messages, then for each its id, payload, and the period in ms for which its
-- record is kept
-- Returns: for each {'enqueued', id} | {'duplicate', id of the first}
-- Events: enqueued
-- Repeats: safe, the record tells that it was this very message
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
