#!lua
-- Guarantee: messages that name the recipient are announced to this gateway, or no longer if it
-- ended the session. The name of a newer session at another gateway does not change.
-- Events: none
-- Repeats: safe
-- include: transition
return each_item(function(recipient, open)
  if open then
    redis.call('HSET', did_sessions_key, recipient, actor)
    return reply.named
  end
  if redis.call('HGET', did_sessions_key, recipient) ~= actor then return reply.other end
  redis.call('HDEL', did_sessions_key, recipient)
  return reply.removed
end)
