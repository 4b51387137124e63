#!lua
-- Guarantee: a dead reply that died at `died_at_ms` is removed. One that was retried and has died again
-- since then stays, so that a retry that removes it late, or a list that is old, loses no reply. The
-- event of one that is `retried` is its acceptance.
-- Events: discarded (module conversations)
-- Repeats: safe, the second call returns 'gone'
-- include: transition
local replies = each_item(function(response_id, member, died_at_ms, dead_reply_key)
  if tonumber(redis.call('ZSCORE', dead_key, member) or nil) ~= died_at_ms then return reply.gone end
  redis.call('ZREM', dead_key, member)
  if not retried then note('discarded', response_id, { k = cjson.decode(member).cnId }) end
  -- The hash may be that of a later reply with the same id, of another conversation.
  if tonumber(redis.call('HGET', dead_reply_key, 'diedAtMs') or nil) == died_at_ms then
    redis.call('DEL', dead_reply_key)
  end
  return reply.dropped
end)
journal_append('conversations')
return replies
