#!lua
-- Guarantee: a delivered or deleted reply is removed from all keys at once, and the next reply is
-- woken. `reason`: 'acknowledged', 'unasked' if the sender expects no ACK, or 'deleted'.
-- Events: delivered, cancelled (module conversations)
-- Repeats: safe, the second call returns 'gone'
-- include: transition
-- include: conversation
local replies = each_item(function(conversation_id, request_id, response_id, member, reason,
    async_request_id, request_key, response_key, requests_key, responses_key, order_key, ack_key)
  local score = tonumber(redis.call('ZSCORE', responses_key, member) or nil)
  if not score then return reply.gone end
  local event, more = 'delivered', { k = conversation_id, t = reason }
  local _, state, holder = read_place(order_key, score)
  leave_sender_wait(holder, member)
  if reason == 'deleted' then
    if state == 'S' then
      more.t = 'acknowledged'
    else
      event, more = 'cancelled', { k = conversation_id, d = reason }
    end
  end
  redis.call('ZREM', responses_key, member)
  redis.call('DEL', response_key, ack_key)
  if redis.call('ZREM', pending_key, member) == 1 then note(event, response_id, more) end
  local head = redis.call('ZRANGE', responses_key, 0, 0, 'WITHSCORES')
  if last_of_request(head, responses_key, score) then
    redis.call('HDEL', order_key, integer(score), 'q' .. request_key)
    redis.call('LREM', requests_key, 1, request_key)
  else
    redis.call('HDEL', order_key, integer(score))
  end
  return reply[event](wake_after(score, head, responses_key, order_key, conversation_id))
end)
wake_others()
journal_append('conversations')
return replies
