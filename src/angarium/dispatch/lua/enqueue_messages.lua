#!lua
-- Guarantee: a message is in the durable intake when this answers, and an idempotency key brings
-- in one message only, however often it is sent.
-- KEYS: 3 inbox (stream), then one for each message: idempotency record (string) or the inbox
-- again when the message has no idempotency key
-- ARGV: 4 period in ms for which a key is remembered, 5 number of messages, then id and payload
-- Returns: for each {'enqueued', id} | {'duplicate', id of the first}
-- Events: enqueued
-- Repeats: safe, an id that was just enqueued is found again
-- include: transition
local replies = {}
for i = 1, tonumber(ARGV[5]) do
  local id, payload, once = ARGV[4 + 2 * i], ARGV[5 + 2 * i], KEYS[3 + i]
  local first = once ~= KEYS[3] and redis.call('GET', once)
  if first then
    replies[i] = { 'duplicate', first }
  else
    if once ~= KEYS[3] then redis.call('SET', once, id, 'PX', ARGV[4]) end
    redis.call('XADD', KEYS[3], '*', 'message_id', id, 'payload', payload)
    note('enqueued', id)
    replies[i] = { 'enqueued', id }
  end
end
journal_append('dispatch')
return replies
