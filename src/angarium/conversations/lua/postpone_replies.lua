#!lua
-- Guarantee: the hold of a held reply is renewed for `pending_ttl`, by its holder only, and the reply
-- does not expire before. A reply that nobody holds gets a new time from which it may be claimed. With
-- `renew_only`, nothing else than a hold is renewed.
-- Events: none; the state does not change
-- Repeats: safe
-- include: transition
-- include: conversation
return each_item(function(conversation_id, response_id, member, wait_ms, retry_ms, renew_only,
    response_key, responses_key, order_key)
  local retries = redis.call('HGET', response_key, 'awaitedRetries')
  local score = tonumber(redis.call('ZSCORE', responses_key, member) or nil)
  local until_ms, state, holder, end_ms
  if score then until_ms, state, holder, end_ms = read_place(order_key, score) end
  if not retries or not until_ms then return reply.gone end
  if state == 'S' then return reply.sent end
  if held_by_another(holder, end_ms) then return reply.held(holder) end
  if holder == own then
    local due_ms = now_ms + pending_ttl
    until_ms = math.max(until_ms, due_ms)
    redis.call('HSET', response_key, 'awaitedToDateTS', seconds(due_ms),
      'expiresAtTS', seconds(until_ms))
    for _, key in ipairs({ response_key, responses_key, order_key }) do
      redis.call('PEXPIRE', key, pending_ttl, 'GT')
    end
    redis.call('ZADD', pending_key, seconds(due_ms), member)
    write_place(order_key, score, until_ms, 'P', own, due_ms)
    return reply.renewed(integer(due_ms))
  end
  if renew_only then return reply.gone end
  local due_ms = math.min(now_ms + wait_ms + retry_ms * retries, until_ms)
  redis.call('HSET', response_key, 'awaitedToDateTS', seconds(due_ms))
  redis.call('ZADD', pending_key, seconds(due_ms), member)
  return reply.postponed(integer(due_ms))
end)
