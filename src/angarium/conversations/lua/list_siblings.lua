#!lua flags=no-writes
-- Guarantee: the replies of one request that are in flight, in order or the last first. `member` is
-- one of the replies, or ''.
-- Events: none
-- Repeats: safe
-- include: transition
-- include: conversation
return each_item(function(conversation_id, request_id, member, most, last_first, request_key,
    responses_key)
  local score = member ~= '' and tonumber(redis.call('ZSCORE', responses_key, member) or nil)
  local position = score and math.floor(score / SPAN)
    or tonumber(redis.call('HGET', request_key, 'position') or nil)
  if not position then return reply.listed({}) end
  local first, last = integer(position * SPAN), integer(position * SPAN + SPAN - 1)
  if last_first then
    return reply.listed(redis.call('ZRANGE', responses_key, last, first, 'BYSCORE', 'REV', 'LIMIT', 0, most))
  end
  return reply.listed(redis.call('ZRANGE', responses_key, first, last, 'BYSCORE', 'LIMIT', 0, most))
end)
