#!lua
-- Guarantee: a reply to an open request is accepted once and gets its place: behind all replies of
-- its request and of earlier requests, before those of later requests. Its place never changes. The
-- accepting process holds it (PENDING) if it asks to and has the sender; otherwise the reply is
-- WAITING for the first process that fetches new replies and has the sender.
-- KEYS: 3–6 as in the include; per item: request, response, requests, responses, order
-- ARGV: 4–11 as in the include, 12 number of items; per item: conversation id, request id,
-- response id, response timestamp, task, correlator, MinMessageInfo, MinMessageInfo of the request,
-- '1' to hold it, origin ('': the request's), required sender ('': the sender of its origin)
-- Returns: per item {'accepted', score, held, origin, request timestamp} | {'duplicate'} |
-- {'taken'} | {'request_unknown'} | {'wrong_conversation'} | {'full'}
-- Events: accepted; answered with the first reply of a request; expired for an expired reply of the
-- same id (module conversations)
-- Repeats: safe, idempotent by response id for as long as its request lives
-- include: transition
-- include: conversation

local function accept(k, a, found, ahead)
  local request, response, requests = KEYS[k], KEYS[k + 1], KEYS[k + 2]
  local responses, order = KEYS[k + 3], KEYS[k + 4]
  local conversation, request_id, response_id = ARGV[a], ARGV[a + 1], ARGV[a + 2]
  local member, counter = ARGV[a + 6], found[5] + 1
  local origin = ARGV[a + 9] ~= '' and ARGV[a + 9] or found[2]
  local required = ARGV[a + 10] ~= '' and ARGV[a + 10] or 'o:' .. origin
  local held = ARGV[a + 8] == '1' and ahead < WINDOW and can_send(required)
  local score, until_ms = found[4] * SPAN + counter, now_ms + awaited_ttl
  local due = seconds(math.min(now_ms + pending_ttl, until_ms))
  local expires = seconds(until_ms)
  -- The field x<response id> lives as long as the request: it shows that a reply is a duplicate.
  redis.call('HSET', request, 'status', 'PENDING', 'responseIdCounter', counter,
    'expiresAtTS', expires, 'x' .. response_id, 1)
  redis.call('PEXPIRE', request, awaited_ttl)
  redis.call('HSET', response, 'conversationId', conversation, 'origin', origin,
    'requestId', request_id, 'responseId', response_id, 'requestTimestamp', found[3],
    'responseTimestamp', ARGV[a + 3], 'status', held and 'PENDING' or 'WAITING',
    'expiresAtTS', expires, 'awaitedToDateTS', due, 'awaitedRetries', 0,
    'taskItem', ARGV[a + 4], 'corr', ARGV[a + 5], 'sentAttempt', 0, 'sender', required)
  redis.call('PEXPIRE', response, awaited_ttl)
  redis.call('ZADD', responses, integer(score), member)
  redis.call('PEXPIRE', responses, awaited_ttl)
  if redis.call('ZADD', KEYS[3], due, member) == 0 then
    note('expired', response_id, { k = conversation }) -- an earlier reply of the same id
  end
  local entry = integer(until_ms) .. (held and ' P ' .. actor or ' P *')
  if counter == 1 then
    redis.call('HSET', order, integer(score), entry,
      'q' .. request, found[4] .. ' ' .. integer(until_ms) .. ' 1')
    redis.call('PEXPIRE', requests, awaited_ttl)
    if redis.call('ZREM', KEYS[4], ARGV[a + 7]) == 1 then
      note('answered', request_id, { k = conversation })
    end
  else
    -- For the first reply, create_requests has set an expiry that is long enough.
    redis.call('HSET', order, integer(score), entry)
    redis.call('PEXPIRE', order, message_ttl + awaited_ttl)
  end
  if not held then
    redis.call('RPUSH', KEYS[5], member)
    new_replies = true
  end
  note('accepted', response_id, { k = conversation, o = origin, d = request_id })
  return { 'accepted', integer(score), held and 1 or 0, origin, found[3] }
end

local answers = {}
for item = 1, items do
  local k, a = 2 + 5 * item, 2 + 11 * item
  local conversation, request_id = ARGV[a], ARGV[a + 1]
  local known = redis.call('HMGET', KEYS[k + 1], 'requestId', 'conversationId', 'expiresAtTS')
  local found = redis.call('HMGET', KEYS[k], 'conversationId', 'origin', 'requestTimestamp',
    'position', 'responseIdCounter', 'expiresAtTS', 'x' .. ARGV[a + 2])
  local ahead = redis.call('ZCARD', KEYS[k + 3])
  if known[1] and tonumber(known[3]) * 1000 > now_ms then
    local same = known[1] == request_id and known[2] == conversation
    answers[item] = { same and 'duplicate' or 'taken' }
  elseif not found[1] or tonumber(found[6]) * 1000 <= now_ms then
    answers[item] = { 'request_unknown' }
  elseif found[1] ~= conversation then
    answers[item] = { 'wrong_conversation' }
  elseif found[7] then
    answers[item] = { 'duplicate' }
  elseif ahead >= replies_max or tonumber(found[5]) >= SPAN - 1 then
    answers[item] = { 'full' }
  else
    if known[1] then redis.call('DEL', KEYS[k + 1]) end
    answers[item] = accept(k, a, found, ahead)
  end
end
wake_others()
journal_append('conversations')
return answers
