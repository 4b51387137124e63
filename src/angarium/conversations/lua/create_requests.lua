#!lua
-- Guarantee: a request is registered once and gets the next position of its conversation.
-- Events: requested; request_expired for an expired request of the same id (module conversations)
-- Repeats: safe, idempotent by request id
-- include: transition
-- include: conversation
local replies = each_item(function(conversation_id, origin, request_id, timestamp, corr, member,
    request_key, requests_key, order_key)
  local found = redis.call('HMGET', request_key, 'conversationId', 'position', 'expiresAtTS')
  if found[1] and tonumber(found[3]) * 1000 > now_ms then
    if found[1] ~= conversation_id then return reply.taken end
    return reply.duplicate(tonumber(found[2]))
  end
  local position = redis.call('HINCRBY', order_key, 'n', 1)
  local until_ms = now_ms + message_ttl
  local entry = position .. ' ' .. integer(until_ms) .. ' 0'
  if redis.call('HSET', order_key, 'q' .. request_key, entry) == 0 then
    redis.call('LREM', requests_key, 0, request_key) -- an expired request of the same id
  end
  local length = redis.call('RPUSH', requests_key, request_key)
  if length > requests_max or position > POSITIONS_MAX then
    redis.call('RPOP', requests_key)
    redis.call('HDEL', order_key, 'q' .. request_key)
    redis.call('HINCRBY', order_key, 'n', -1)
    return reply.full
  end
  if found[1] then redis.call('DEL', request_key) end
  redis.call('HSET', request_key, 'conversationId', conversation_id, 'origin', origin,
    'requestId', request_id, 'requestTimestamp', timestamp, 'status', 'WAITING',
    'responseIdCounter', 0, 'expiresAtTS', seconds(until_ms), 'position', position)
  if corr ~= '' then redis.call('HSET', request_key, 'corr', corr) end
  redis.call('PEXPIRE', request_key, message_ttl)
  -- A list with answered requests has a longer expiry, which must not be shortened.
  if length == 1 then
    redis.call('PEXPIRE', requests_key, message_ttl)
  else
    redis.call('PEXPIRE', requests_key, message_ttl, 'GT')
  end
  redis.call('PEXPIRE', order_key, message_ttl + awaited_ttl)
  if redis.call('ZADD', open_key, seconds(until_ms), member) == 0 then
    note('request_expired', request_id, { k = conversation_id })
  end
  note('requested', request_id, { k = conversation_id, o = origin })
  return reply.created(position)
end)
journal_append('conversations')
return replies
