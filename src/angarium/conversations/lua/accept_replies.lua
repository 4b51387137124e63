#!lua
-- Guarantee: a reply to an open request is accepted once and gets its place: behind all replies of
-- its request and of earlier requests, before those of later requests. Its place never changes. The
-- caller holds it (PENDING) if it asks to and has the sender: always, or only if the reply is near its
-- turn. Otherwise the reply is WAITING for the first process that can send it.
-- Events: accepted; answered with the first reply of a request; expired or delivered for an earlier
-- reply of the same id whose time is over (module conversations)
-- Repeats: safe, idempotent by response id for as long as its request lives, and at least for the last
-- 4,096 replies of the request
-- include: transition
-- include: conversation

-- The field x<response id> of a request shows that a reply is a duplicate; its value is the reply's
-- number / SEEN_MAX. Fields that are two numbers old are removed, so that they do not grow for ever.
local SEEN_MAX = 4096

local function forget_old(request, counter)
  if counter % SEEN_MAX ~= 0 then return end
  local fields, oldest = redis.call('HGETALL', request), counter / SEEN_MAX - 1
  for number = 1, #fields, 2 do
    if string.sub(fields[number], 1, 1) == 'x' and tonumber(fields[number + 1]) < oldest then
      redis.call('HDEL', request, fields[number])
    end
  end
end

local replies = each_item(function(conversation_id, request_id, response_id, timestamp, task, corr,
    member, request_member, hold, origin, sender, request_key, response_key, requests_key,
    responses_key, order_key)
  local known = redis.call('HMGET', response_key, 'requestId', 'conversationId', 'expiresAtTS')
  local found = redis.call('HMGET', request_key, 'conversationId', 'origin', 'requestTimestamp',
    'position', 'responseIdCounter', 'expiresAtTS', 'x' .. response_id)
  local ahead = redis.call('ZCARD', responses_key)
  if known[1] and tonumber(known[3]) * 1000 > now_ms then
    local same = known[1] == request_id and known[2] == conversation_id
    return same and reply.duplicate or reply.taken
  end
  if not found[1] or tonumber(found[6]) * 1000 <= now_ms then return reply.request_unknown end
  if found[1] ~= conversation_id then return reply.wrong_conversation end
  if found[7] then return reply.duplicate end
  if ahead >= replies_max or tonumber(found[5]) >= SPAN - 1 then return reply.full end
  if known[1] then redis.call('DEL', response_key) end

  local counter, until_ms = found[5] + 1, now_ms + awaited_ttl
  origin = origin ~= '' and origin or found[2]
  local required = sender ~= '' and sender or 'o:' .. origin
  local score = found[4] * SPAN + counter
  -- A reply to an early request goes before many that were accepted earlier.
  if ahead >= WINDOW then
    ahead = redis.call('ZCOUNT', responses_key, '-inf', '(' .. integer(score))
  end
  local held = (hold == 'always' or hold == 'near' and ahead < WINDOW) and can_send(required)
  -- A reply that nobody holds is due at once, or, far behind, when it is nearly its turn.
  local due_ms = ahead < WINDOW and now_ms or until_ms
  if held then due_ms = math.min(now_ms + pending_ttl, until_ms) end
  local due, expires = seconds(due_ms), seconds(until_ms)
  redis.call('HSET', request_key, 'status', 'PENDING', 'responseIdCounter', counter,
    'expiresAtTS', expires, 'x' .. response_id, math.floor(counter / SEEN_MAX))
  forget_old(request_key, counter)
  redis.call('PEXPIRE', request_key, awaited_ttl)
  redis.call('HSET', response_key, 'conversationId', conversation_id, 'origin', origin,
    'requestId', request_id, 'responseId', response_id, 'requestTimestamp', found[3],
    'responseTimestamp', timestamp, 'status', held and 'PENDING' or 'WAITING',
    'expiresAtTS', expires, 'awaitedToDateTS', due, 'awaitedRetries', 0, 'taskItem', task)
  -- Fields that have their usual value are left out: each takes about 70 bytes.
  if corr ~= '' then redis.call('HSET', response_key, 'corr', corr) end
  if sender ~= '' then redis.call('HSET', response_key, 'sender', sender) end
  redis.call('PEXPIRE', response_key, awaited_ttl)
  redis.call('ZADD', responses_key, integer(score), member)
  redis.call('PEXPIRE', responses_key, awaited_ttl)
  if redis.call('ZADD', pending_key, 'NX', due, member) == 0 then
    local earlier = was_sent(redis.call('ZSCORE', pending_key, member))
    note(earlier and 'delivered' or 'expired', response_id,
      { k = conversation_id, t = earlier and 'unacknowledged' or nil })
    redis.call('ZADD', pending_key, due, member)
  end
  local entry = held and place(until_ms, 'P', own, due_ms) or place(until_ms, 'P', '-')
  if counter == 1 then
    redis.call('HSET', order_key, integer(score), entry,
      'q' .. request_key, found[4] .. ' ' .. integer(until_ms) .. ' 1')
    redis.call('PEXPIRE', requests_key, awaited_ttl)
    if redis.call('ZREM', open_key, request_member) == 1 then
      note('answered', request_id, { k = conversation_id })
    end
  else
    -- For the first reply, create_requests has set an expiry that is long enough.
    redis.call('HSET', order_key, integer(score), entry)
    redis.call('PEXPIRE', order_key, message_ttl + awaited_ttl)
  end
  due_replies = due_replies or not held and due_ms == now_ms
  note('accepted', response_id, { k = conversation_id, o = origin, d = request_id })
  return reply.accepted(integer(score), held and 1 or 0, origin, found[3])
end)
wake_others()
journal_append('conversations')
return replies
