#!lua
-- Guarantee: a reply that was sent is SENT, also if somebody else holds it now: refusing the report
-- would send it again. It blocks the replies behind it until its ACK comes or `sent_ttl` ends. An ACK
-- id stays with the first reply that waits for it, so that an ACK never ends another reply.
-- Events: sent (module conversations)
-- Repeats: safe, the second call returns 'repeated'
-- include: transition
-- include: conversation

-- Whether the ACK id belongs to this reply now.
local function register_ack(ack_key, member)
  if redis.call('SET', ack_key, member, 'NX', 'PX', sent_ttl) then return true end
  local other = redis.call('GET', ack_key)
  if other ~= member and redis.call('ZSCORE', pending_key, other) then return false end
  redis.call('SET', ack_key, member, 'PX', sent_ttl)
  return true
end

local replies = each_item(function(conversation_id, response_id, member, async_request_id,
    response_key, responses_key, order_key, ack_key)
  local found = redis.call('HMGET', response_key, 'status', 'sentAttempt', 'expiresAtTS')
  local score = tonumber(redis.call('ZSCORE', responses_key, member) or nil)
  if not found[1] or not score then return reply.gone end
  if found[1] == 'SENT' then return reply.repeated end
  local attempt, until_ms = (found[2] or 0) + 1, now_ms + sent_ttl
  local registered = async_request_id == '' or register_ack(ack_key, member)
  redis.call('HSET', response_key, 'status', 'SENT', 'sentAttempt', attempt,
    'asyncRequestId', registered and async_request_id or '', 'awaitedToDateTS', seconds(until_ms),
    'expiresAtTS', seconds(until_ms), 'lastAccess', seconds(now_ms))
  redis.call('PEXPIRE', response_key, sent_ttl)
  if tonumber(found[3]) * 1000 < until_ms then
    -- Sent shortly before it expires: its place must still exist when the ACK comes.
    redis.call('PEXPIRE', responses_key, sent_ttl, 'GT')
    redis.call('PEXPIRE', order_key, sent_ttl, 'GT')
  end
  redis.call('ZADD', pending_key, sent_seconds(until_ms), member)
  local _, _, holder = read_place(order_key, score)
  leave_sender_wait(holder, member)
  write_place(order_key, score, until_ms, 'S', own)
  note('sent', response_id, { k = conversation_id, a = attempt })
  return registered and reply.sent or reply.ack_taken
end)
journal_append('conversations')
return replies
