#!lua
-- Guarantee: a notification that was sent or given up ('pushed', 'push_failed') is over for every
-- message that was added before it was claimed. Messages that were added later have one of their own.
-- After 'retry' it is tried again; after 'wait' it was not tried, and keeps its number of tries.
-- Events: pushed, push_failed, push_retried (module pickup)
-- Repeats: safe
-- include: transition
-- include: push
local member, field = token .. ' ' .. queue, ':' .. token
local note_text = redis.call('HGET', tokens_key, field)
if not note_text then return reply.settled end
local body = string.match(note_text, '^%d+ (.*)$')
local due = string.format('%.0f', now_ms + delay_ms)
if outcome == 'retry' or outcome == 'wait' then
  if outcome == 'wait' then
    redis.call('HSET', tokens_key, field, string.format('%.0f', tries) .. ' ' .. body)
  else
    note('push_retried', message_id, { k = queue })
  end
  redis.call('ZADD', pushes_due_key, due, member)
  journal_append('pickup')
  return reply.later
end
note(outcome, message_id, { k = queue })
journal_append('pickup')
if forget_messages(tokens_key, token, claimed_ms) then
  delete_token(meta_key, tokens_key, pushes_due_key, token, member)
  return reply.settled
end
redis.call('HSET', tokens_key, field, '0 ' .. body)
redis.call('ZADD', pushes_due_key, due, member)
return reply.newer
