#!lua
-- Guarantee: a reply that can't be sent now is AWAITED until its next try, and nobody holds it. With
-- `tried`, the first reply of its conversation counts one more retry; the replies behind it could not
-- be tried. A sent reply, or one that somebody else holds, does not change. A reply that waits for a
-- process with its sender continues to do so.
-- Events: awaited (module conversations)
-- Repeats: safe, the second call returns 'awaited' and changes nothing
-- include: transition
-- include: conversation
local replies = each_item(function(conversation_id, response_id, member, wait_ms, retry_ms, why,
    tried, response_key, responses_key, order_key)
  local found = redis.call('HMGET', response_key, 'status', 'awaitedRetries', 'awaitedToDateTS')
  local score = tonumber(redis.call('ZSCORE', responses_key, member) or nil)
  if not found[1] or not score then return reply.gone end
  local until_ms, state, holder, end_ms = read_place(order_key, score)
  if not until_ms then return reply.gone end
  if state == 'S' then return reply.sent end
  if found[1] == 'AWAITED' then return reply.awaited(integer(found[3] * 1000)) end
  if held_by_another(holder, end_ms) then return reply.held(holder) end
  local retries, more = tonumber(found[2]), { k = conversation_id, d = why }
  if required_in(holder) then
    more.a = retries
    redis.call('HSET', response_key, 'status', 'AWAITED')
    note('awaited', response_id, more)
    return reply.awaited(integer(found[3] * 1000))
  end
  -- The formula of the back-off has the retries before this one.
  local due_ms = math.min(now_ms + wait_ms + retry_ms * retries, until_ms)
  if tried and redis.call('ZRANK', responses_key, member) == 0 then retries = retries + 1 end
  redis.call('HSET', response_key, 'status', 'AWAITED', 'awaitedToDateTS', seconds(due_ms),
    'awaitedRetries', retries)
  redis.call('ZADD', pending_key, seconds(due_ms), member)
  write_place(order_key, score, until_ms, 'P', '-')
  more.a = retries
  note('awaited', response_id, more)
  due_replies = true
  return reply.awaited(integer(due_ms))
end)
wake_others()
journal_append('conversations')
return replies
