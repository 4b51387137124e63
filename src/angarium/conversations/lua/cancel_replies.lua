#!lua
-- Guarantee: replies of one request are removed together, the last first, so that none of them can be
-- sent in between. A closed request accepts no more replies. `whole_group`: the items are all replies
-- of the request; if it has more by now, the answer is 'again'. `status` and `except_origin` choose
-- among the items if they are not ''. A reply that was sent is delivered, not cancelled. With `keep_ms`
-- cancelled replies are kept that long as dead replies, at most `dead_max` of them.
-- Events: cancelled, dead, delivered, request_removed (module conversations)
-- Repeats: safe
-- include: transition
-- include: conversation

-- The score of any reply gives the range of scores of its request.
local anchor = anchor_member ~= '' and tonumber(redis.call('ZSCORE', responses_key, anchor_member) or nil)
  or tonumber(redis.call('HGET', request_key, 'position') or 0) * SPAN
local head = redis.call('ZRANGE', responses_key, 0, 0)[1]
if close then
  -- The closed request keeps its position until all replies are gone: the next call reads it.
  if redis.call('EXISTS', request_key) == 1 then
    redis.call('HSET', request_key, 'expiresAtTS', seconds(now_ms))
  end
  if redis.call('ZREM', open_key, request_member) == 1 then
    note('request_removed', request_id, { k = conversation_id, d = why })
  end
end
if whole_group and anchor > 0 then
  local first = math.floor(anchor / SPAN) * SPAN
  local number = redis.call('ZCOUNT', responses_key, integer(first), integer(first + SPAN - 1))
  if number > item_count then
    journal_append('conversations')
    return reply.again
  end
end
local cancelled = 0

local function keep(member, response_key, dead_reply_key, score)
  redis.call('RENAME', response_key, dead_reply_key)
  redis.call('HSET', dead_reply_key, 'status', 'CANCEL', 'why', why, 'diedAtMs', integer(now_ms),
    'place', integer(score))
  redis.call('PEXPIRE', dead_reply_key, keep_ms)
  redis.call('ZADD', dead_key, integer(now_ms), member)
  redis.call('ZREMRANGEBYSCORE', dead_key, '-inf', integer(now_ms - keep_ms))
  redis.call('ZREMRANGEBYRANK', dead_key, 0, -dead_max - 1)
  redis.call('PEXPIRE', dead_key, keep_ms)
end

each_item(function(response_id, member, response_key, dead_reply_key)
  local score = tonumber(redis.call('ZSCORE', responses_key, member) or nil)
  local found = redis.call('HMGET', response_key, 'status', 'origin')
  local wanted = (status == '' or found[1] == status)
    and (except_origin == '' or found[2] ~= except_origin)
  if not score or not wanted then return false end
  if found[1] == 'SENT' then
    end_expired(responses_key, order_key, member, score, 'S', conversation_id)
  else
    local kept = keep_ms > 0 and found[1]
    remove_reply(responses_key, order_key, member, score, kept and 'dead' or 'cancelled',
      { k = conversation_id, d = why })
    cancelled = cancelled + 1
    if kept then keep(member, response_key, dead_reply_key, score) end
  end
  redis.call('DEL', response_key)
  return true
end)
if close and whole_group then redis.call('DEL', request_key) end
local position = read_request_entry(order_key, request_key)
if (position and (close or item_count > 0)) and not has_replies(responses_key, position * SPAN) then
  redis.call('LREM', requests_key, 1, request_key)
  redis.call('HDEL', order_key, 'q' .. request_key)
end
-- The end of a later group unblocks no reply, and must not shorten the first reply's back-off.
local first_left = redis.call('ZRANGE', responses_key, 0, 0, 'WITHSCORES')
local next_member = ''
local earlier = close and position and first_left[1] and position < math.floor(first_left[2] / SPAN)
if first_left[1] and (first_left[1] ~= head or earlier) then
  next_member = wake_next(first_left, responses_key, order_key, conversation_id)
end
wake_others()
journal_append('conversations')
return reply.cancelled(cancelled, next_member)
