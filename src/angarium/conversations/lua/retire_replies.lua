#!lua
-- Guarantee: a reply ends when the given time is over, unless it ends before. It blocks other replies
-- no longer than that. A reply that somebody else holds does not end before the hold does.
-- Events: none; the script that ends the reply writes the event
-- Repeats: safe
-- include: transition
-- include: conversation
local replies = each_item(function(conversation_id, response_id, member, after_ms, response_key,
    responses_key, order_key)
  local score = tonumber(redis.call('ZSCORE', responses_key, member) or nil)
  local until_ms, state, holder, end_ms
  if score then until_ms, state, holder, end_ms = read_place(order_key, score) end
  if not until_ms then return reply.gone end
  local least_ms = held_by_another(holder, end_ms) and end_ms or 0
  until_ms = math.min(until_ms, math.max(least_ms, now_ms + after_ms))
  local due_ms = math.min(tonumber(redis.call('ZSCORE', pending_key, member) or 0) * 1000, until_ms)
  redis.call('HSET', response_key, 'expiresAtTS', seconds(until_ms))
  redis.call('PEXPIRE', response_key, math.max(1, until_ms - now_ms))
  redis.call('ZADD', pending_key, state == 'S' and sent_seconds(due_ms) or seconds(due_ms), member)
  write_place(order_key, score, until_ms, state, holder, end_ms > 0 and end_ms or nil)
  due_replies = true
  return reply.retiring(integer(until_ms))
end)
wake_others()
return replies
