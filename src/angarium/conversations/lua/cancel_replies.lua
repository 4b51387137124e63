#!lua
-- Guarantee: replies of one request leave together, the last first, so that none of them can go
-- out in between; a closed request takes no more of them.
-- KEYS: 3–6 as in the include; then request, requests, responses,
-- order; per item: response
-- ARGV: 4–11 as in the include, 12 number of items, 13 conversation id, 14 request id,
-- 15 MinMessageInfo of the request, 16 close the request, 17 whole group, 18 only of this status
-- or '', 19 not of this origin or '', 20 why; per item: MinMessageInfo, the last of them first
-- Returns: {'cancelled', number, MinMessageInfo of the next if this process holds it or ''} |
-- {'again'} the group has grown since it was listed: list it again
-- Events: cancelled, request_removed (module conversations)
-- Repeats: safe
-- include: transition
-- include: conversation
local request, requests, responses, order = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local conversation, close, group = ARGV[13], ARGV[16] == '1', ARGV[17] == '1'
local status, except, why = ARGV[18], ARGV[19], ARGV[20]

-- Any reply of the request tells where its range of scores lies.
local anchor = items > 0 and tonumber(redis.call('ZSCORE', responses, ARGV[21]) or nil)
  or tonumber(redis.call('HGET', request, 'position') or 0) * SPAN
local head = redis.call('ZRANGE', responses, 0, 0)[1]
if close then
  -- Closed, but until all have gone it tells where its replies stand: the next call asks for it.
  if redis.call('EXISTS', request) == 1 then
    redis.call('HSET', request, 'expiresAtTS', seconds(now_ms))
  end
  if redis.call('ZREM', KEYS[4], ARGV[15]) == 1 then
    note('request_removed', ARGV[14], { k = conversation, d = why })
  end
end
if group and anchor and anchor > 0 then
  local first = math.floor(anchor / SPAN) * SPAN
  local number = redis.call('ZCOUNT', responses, whole(first), whole(first + SPAN - 1))
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
    take_out(responses, order, member, score, 'cancelled', { k = conversation, d = why })
    redis.call('DEL', response)
    cancelled = cancelled + 1
  end
end
if close and group then redis.call('DEL', request) end
local position = listed(order, request)
if (position and (close or cancelled > 0)) and not has_replies(responses, position * SPAN) then
  redis.call('LREM', requests, 1, request)
  redis.call('HDEL', order, 'q' .. request)
end
-- A later group's end frees nobody, and must not cut short what the first one waits for.
local freed = redis.call('ZRANGE', responses, 0, 0, 'WITHSCORES')
local next_member = ''
local earlier = close and position and freed[1] and position < math.floor(freed[2] / SPAN)
if freed[1] and (freed[1] ~= head or earlier) then
  next_member = wake_next(freed, responses, order, conversation)
end
wake_others()
journal_append('conversations')
return { 'cancelled', cancelled, next_member }
