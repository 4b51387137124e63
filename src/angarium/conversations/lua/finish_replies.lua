#!lua
-- Guarantee: a delivered or deleted reply is removed from all keys at once, and the next reply is
-- woken.
-- KEYS: 3–6 as in the include; per item: request, response, requests, responses, order, ack
-- ARGV: 4–11 as in the include, 12 number of items; per item: conversation id, response id,
-- MinMessageInfo, reason: 'acknowledged', 'unasked' if the sender expects no ACK, or 'deleted'
-- Returns: per item {'delivered', MinMessageInfo of the next reply if this process holds it or ''} |
-- {'cancelled', the same}: deleted before it was sent | {'gone'}
-- Events: delivered, cancelled (module conversations)
-- Repeats: safe, the second call returns 'gone'
-- include: transition
-- include: conversation

local function finish(k, conversation, response_id, member, how)
  local request, requests, responses, order = KEYS[k], KEYS[k + 2], KEYS[k + 3], KEYS[k + 4]
  local score = tonumber(redis.call('ZSCORE', responses, member) or nil)
  if not score then return { 'gone' } end
  local event, more = 'delivered', { k = conversation, t = how }
  local _, state, holder = read_place(order, score)
  leave_sender_wait(holder, member)
  if how == 'deleted' then
    if state == 'S' then
      more.t = 'acknowledged'
    else
      event, more = 'cancelled', { k = conversation, d = how }
    end
  end
  redis.call('ZREM', responses, member)
  redis.call('DEL', KEYS[k + 1], KEYS[k + 5])
  if redis.call('ZREM', KEYS[3], member) == 1 then note(event, response_id, more) end
  local head = redis.call('ZRANGE', responses, 0, 0, 'WITHSCORES')
  if last_of_request(head, responses, score) then
    redis.call('HDEL', order, integer(score), 'q' .. request)
    redis.call('LREM', requests, 1, request)
  else
    redis.call('HDEL', order, integer(score))
  end
  return { event, wake_after(score, head, responses, order, conversation) }
end

local answers = {}
for item = 1, items do
  local a = 9 + 4 * item
  answers[item] = finish(1 + 6 * item, ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3])
end
wake_others()
journal_append('conversations')
return answers
