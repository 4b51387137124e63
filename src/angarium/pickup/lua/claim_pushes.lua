#!lua
-- Guarantee: a notification that is due goes to one caller, if a message for it is still not
-- collected. If the caller dies, another one gets it when the claim is over. 'collected': nothing is
-- left to notify about; the token is deleted.
-- Events: none, settle_push adds the event
-- Repeats: no, a repeat does not return the notifications of the first call
-- include: transition
-- include: push
return each_item(function(queue, token, meta_key, tokens_key)
  local member = queue ~= '' and token .. ' ' .. queue or token -- without a queue: of 0.1
  local due_ms = tonumber(redis.call('ZSCORE', pushes_due_key, member))
  if not due_ms or due_ms > now_ms then return reply.not_due end
  local note = redis.call('HGET', tokens_key, ':' .. token)
  local newest = note and newest_message(tokens_key, token)
  if not newest then
    delete_token(meta_key, tokens_key, pushes_due_key, token, member)
    return reply.collected
  end
  local tries, body = string.match(note, '^(%d+) (.*)$')
  redis.call('HSET', tokens_key, ':' .. token, (tries + 1) .. ' ' .. body)
  redis.call('ZADD', pushes_due_key, string.format('%.0f', now_ms + claim_ms), member)
  return reply.claimed(tries, newest, now_ms, body)
end)
