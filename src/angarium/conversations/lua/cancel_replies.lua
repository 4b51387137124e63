#!lua
-- Guarantee: replies of one request are removed together, the last first, so that none of them can be
-- sent in between. A closed request accepts no more replies.
-- KEYS: 3–6 as in the include; then request, requests, responses, order; per item: response
-- ARGV: 4–11 as in the include, 12 number of items, 13 conversation id, 14 request id,
-- 15 MinMessageInfo of the request, 16 '1' to close the request, 17 '1' if the items are the whole
-- group, 18 only this status or '', 19 not this origin or '', 20 reason; per item: MinMessageInfo,
-- the last reply first
-- Returns: {'cancelled', number, MinMessageInfo of the next reply if this process holds it or ''} |
-- {'again'}: the group has grown since the caller listed it
-- Events: cancelled, request_removed (module conversations)
-- Repeats: safe
-- include: transition
-- include: conversation
local request, requests, responses, order = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local conversation, close, group = ARGV[13], ARGV[16] == '1', ARGV[17] == '1'
local status, except, why = ARGV[18], ARGV[19], ARGV[20]

-- The score of any reply gives the range of scores of its request.
local anchor = items > 0 and tonumber(redis.call('ZSCORE', responses, ARGV[21]) or nil)
  or tonumber(redis.call('HGET', request, 'position') or 0) * SPAN
local head = redis.call('ZRANGE', responses, 0, 0)[1]
if close then
  -- The closed request keeps its position until all replies are gone: the next call reads it.
  if redis.call('EXISTS', request) == 1 then
    redis.call('HSET', request, 'expiresAtTS', seconds(now_ms))
  end
  if redis.call('ZREM', KEYS[4], ARGV[15]) == 1 then
    note('request_removed', ARGV[14], { k = conversation, d = why })
  end
end
if group and anchor and anchor > 0 then
  local first = math.floor(anchor / SPAN) * SPAN
  local number = redis.call('ZCOUNT', responses, integer(first), integer(first + SPAN - 1))
  if number > items then
    journal_append('conversations')
    return { 'again' }
  end
end
local cancelled = 0
for item = 1, items do
  local response, member = KEYS[10 + item], ARGV[20 + item]
  local score = tonumber(redis.call('ZSCORE', responses, member) or nil)
  local found = redis.call('HMGET', response, 'status', 'origin')
  local wanted = (status == '' or found[1] == status) and (except == '' or found[2] ~= except)
  if score and wanted then
    remove_reply(responses, order, member, score, 'cancelled', { k = conversation, d = why })
    redis.call('DEL', response)
    cancelled = cancelled + 1
  end
end
if close and group then redis.call('DEL', request) end
local position = read_request_entry(order, request)
if (position and (close or cancelled > 0)) and not has_replies(responses, position * SPAN) then
  redis.call('LREM', requests, 1, request)
  redis.call('HDEL', order, 'q' .. request)
end
-- The end of a later group unblocks no reply, and must not shorten the first reply's back-off.
local first_left = redis.call('ZRANGE', responses, 0, 0, 'WITHSCORES')
local next_member = ''
local earlier = close and position and first_left[1] and position < math.floor(first_left[2] / SPAN)
if first_left[1] and (first_left[1] ~= head or earlier) then
  next_member = wake_next(first_left, responses, order, conversation)
end
wake_others()
journal_append('conversations')
return { 'cancelled', cancelled, next_member }
