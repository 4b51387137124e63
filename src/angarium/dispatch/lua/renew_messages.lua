#!lua flags=allow-oom
-- Guarantee: a message that its holder renews is not due for another time-out. If another worker
-- has it, or nobody ('lost'), or if it is finished ('unknown'), nothing changes.
-- Events: none, the message stays with its holder
-- Repeats: safe
-- include: transition
-- include: attempts
-- include: queues
local ids, now = {}, string.format('%.0f', now_ms)
each_item(function(message_id, consumer, delivery) ids[#ids + 1] = message_id end)
local scores = redis.call('ZMSCORE', pending_key, unpack(ids))
local attempts = redis.call('HMGET', attempts_key, unpack(ids))
local members, item = {}, 0
-- The record of the common case, renewed before in the first delivery, needs no parsing.
local known_consumer, usual
local replies = each_item(function(message_id, consumer, delivery)
  item = item + 1
  if not scores[item] then return reply.unknown end
  local value = attempts[item]
  if consumer ~= known_consumer then known_consumer, usual = consumer, '1@' .. consumer end
  if value ~= usual or delivery > 1 then
    if not is_holder(value, consumer, delivery) then return reply.lost end
    local deliveries, holder, reasons = read_attempts(value)
    if holder ~= consumer then
      redis.call('HSET', attempts_key, message_id, deliveries .. '@' .. consumer .. reasons)
    end
  end
  members[#members + 1] = have_queues() and pending_score(message_id, now_ms) or now
  members[#members + 1] = message_id
  return reply.renewed
end)
if #members > 0 then redis.call('ZADD', pending_key, unpack(members)) end
return replies
