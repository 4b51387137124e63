#!lua
-- Guarantee: pending archived messages are given to one caller, as pull_messages and take_messages
-- give those in Redis: oldest first, and the first one even if it alone is larger than bytes_max (up
-- to first_bytes_max). The items are rows by sequence, which the caller read when the queue's
-- 'cleared' was as given. If it has changed, a row may belong to a removed message: 'again'. A
-- caller without a term is a taker; its messages are pending again at due_ms.
-- Events: sent (module pickup)
-- Repeats: no, a repeat does not return the messages of the first call
-- include: transition
-- include: queue
local keys = queue_keys(meta_key, messages_key, pending_key, sending_key, recipients_key,
  removed_key)
if term ~= '' and call('HGET', keys.meta, 'term') ~= term then return reply.lost end
if (call('HGET', keys.meta, 'cleared') or '') ~= cleared then return reply.again end
local due_ms = digits(now_ms + sending_ms)
local claimed, bytes, full = {}, 0, 0
each_item(function(id, sequence, size)
  -- Messages that are moving, removed or sent are not given.
  if full == 1 or call('HEXISTS', keys.messages, id) == 1
    or call('SISMEMBER', keys.removed, id) == 1 or call('ZSCORE', keys.sending, id) then
    return
  end
  bytes = bytes + size
  if #claimed == messages_max or bytes > (#claimed == 0 and first_bytes_max or bytes_max) then
    full = 1
    return
  end
  claimed[#claimed + 1] = id
  call('ZADD', keys.sending, term ~= '' and digits(HELD + sequence) or due_ms, id)
  note_message('sent', id, queue)
end)
if #claimed > 0 then
  call('HINCRBY', keys.meta, 'held', #claimed)
  if term == '' then call('ZADD', due_key, 'LT', due_ms, queue) end
end
journal_append('pickup')
return reply.claimed(full, due_ms, claimed)
