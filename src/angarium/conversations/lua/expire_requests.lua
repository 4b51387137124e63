#!lua
-- Guarantee: a request that expired without a reply gets one event and is removed from the list of its
-- conversation. 'open': the id was opened again.
-- Events: request_expired (module conversations)
-- Repeats: safe, the second call returns 'gone'
-- include: transition
-- include: conversation
local replies = each_item(function(conversation_id, request_id, member, request_key, requests_key,
    order_key)
  local over_at = tonumber(redis.call('ZSCORE', open_key, member) or nil)
  if not over_at then return reply.gone end
  if over_at > tonumber(seconds(now_ms)) then return reply.open end
  redis.call('ZREM', open_key, member)
  note('request_expired', request_id, { k = conversation_id })
  local position, _, answered = read_request_entry(order_key, request_key)
  if position and not answered then
    redis.call('HDEL', order_key, 'q' .. request_key)
    redis.call('LREM', requests_key, 1, request_key)
  end
  return reply.expired
end)
journal_append('conversations')
return replies
