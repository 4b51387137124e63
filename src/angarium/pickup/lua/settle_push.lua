#!lua
-- Guarantee: a notification that was sent or given up is deleted. If a newer one has replaced it, the
-- newer one waits for its interval. A failed notification is tried again later; one that was not
-- tried keeps its number of tries. The outcome is 'pushed', 'push_failed', 'retry' or 'wait'.
-- Events: pushed, push_failed (module pickup)
-- Repeats: safe
-- include: transition
local ended = outcome == 'pushed' or outcome == 'push_failed'
local body = string.match(redis.call('HGET', pushes_key, token) or '', '^%d+ (.*)$')
local unchanged = body == push
if unchanged and ended then
  redis.call('HDEL', pushes_key, token)
  redis.call('ZREM', pushes_due_key, token)
elseif body then
  if unchanged and outcome == 'wait' then
    redis.call('HSET', pushes_key, token, tries .. ' ' .. body)
  end
  redis.call('ZADD', pushes_due_key, string.format('%.0f', now_ms + delay_ms), token)
end
if ended and body then note(outcome, message_id) end
journal_append('pickup')
if body and not unchanged then return reply.newer end
return ended and reply.settled or reply.later
