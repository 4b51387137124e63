#!lua
-- Guarantee: a claimed reply becomes PENDING in this process, unless another has it by now. One
-- whose time is over ends here, and the one behind it is woken.
-- KEYS: 3 pendingMessages, 4 openRequests, 5 newMessages; per item: request, response, requests,
-- responses, order
-- ARGV: 4–10 as in the include, 11 number of items; per item: conversation id, MinMessageInfo,
-- the claim or '' for a reply that nobody held before
-- Returns: per item {'taken', score, retries, ms left, task, origin, correlator, request
-- timestamp, response timestamp, send attempts} | {'expired', next} | {'delivered', next} |
-- {'awaited'} too far behind | {'later'} more than one call may answer | {'sent'} | {'lost'} |
-- {'gone'}; next: MinMessageInfo of the next, if this process holds it
-- Events: taken, awaited, expired, delivered (room conversations)
-- Repeats: no, a second call finds the claim used up and answers 'lost'
-- include: transition
-- include: conversation
local FIELDS = { 'status', 'awaitedRetries', 'taskItem', 'origin', 'corr', 'requestTimestamp',
  'responseTimestamp', 'sentAttempt' }
-- Past this a call takes no more: what it answers travels as a whole. The rest is offered again.
local BYTES_MAX = 8388608
local taken_bytes = 0

local function overdue(k, conversation, member, score, state)
  -- Its hash ends by itself, at this very time: under that name there may be another's by now.
  local event = take_out_overdue(KEYS[k + 3], KEYS[k + 4], member, score, state, conversation)
  local head = redis.call('ZRANGE', KEYS[k + 3], 0, 0, 'WITHSCORES')
  if last_of_request(head, KEYS[k + 3], score) then
    redis.call('HDEL', KEYS[k + 4], 'q' .. KEYS[k])
    redis.call('LREM', KEYS[k + 2], 1, KEYS[k])
  end
  return { event, wake_after(score, head, KEYS[k + 3], KEYS[k + 4], conversation) }
end

-- The places of replies whose list has expired as a whole, and the requests they answered.
local function forget_places(requests, order)
  for _, name in ipairs(redis.call('HKEYS', order)) do
    local request = string.match(name, '^q(.*)$')
    if not request then
      if name ~= 'n' then redis.call('HDEL', order, name) end
    else
      local _, _, answered = listed(order, request)
      if answered then
        redis.call('HDEL', order, name)
        redis.call('LREM', requests, 1, request)
      end
    end
  end
end

local function take(k, conversation, member, claim)
  local response, responses, order = KEYS[k + 1], KEYS[k + 3], KEYS[k + 4]
  local due = redis.call('ZSCORE', KEYS[3], member)
  if not due then return { 'gone' } end
  local score = tonumber(redis.call('ZSCORE', responses, member) or nil)
  if not score then
    -- The whole conversation has run out of its time.
    if redis.call('EXISTS', responses) == 0 then forget_places(KEYS[k + 2], order) end
    redis.call('ZREM', KEYS[3], member)
    note('expired', cjson.decode(member).rsId, { k = conversation })
    return { 'expired', '' }
  end
  local until_ms, state = placed(order, score)
  local found = redis.call('HMGET', response, unpack(FIELDS))
  if not until_ms or until_ms <= now_ms or not found[1] then
    return overdue(k, conversation, member, score, state)
  end
  if claim == '' and found[1] ~= 'WAITING' then return { 'lost' } end
  if claim ~= '' and tonumber(due) ~= tonumber(claim) then return { 'lost' } end
  if state == 'S' then
    redis.call('ZADD', KEYS[3], seconds(until_ms), member)
    return { 'sent' }
  end
  if redis.call('ZRANK', responses, member) >= WINDOW then
    redis.call('HSET', response, 'status', 'AWAITED', 'awaitedToDateTS', seconds(until_ms))
    redis.call('ZADD', KEYS[3], seconds(until_ms), member)
    place(order, score, until_ms, 'P', '-')
    if found[1] ~= 'AWAITED' then
      note('awaited', cjson.decode(member).rsId,
        { k = conversation, a = tonumber(found[2]), d = 'far behind' })
    end
    return { 'awaited' }
  end
  if taken_bytes >= BYTES_MAX then
    if claim == '' then
      redis.call('LPUSH', KEYS[5], member)
    else
      redis.call('ZADD', KEYS[3], seconds(now_ms), member)
    end
    return { 'later' }
  end
  taken_bytes = taken_bytes + #(found[3] or '')
  local retries = tonumber(found[2]) + (found[1] == 'WAITING' and 0 or 1)
  local due_ts = seconds(math.min(now_ms + pending_ttl, until_ms))
  redis.call('HSET', response, 'status', 'PENDING', 'awaitedRetries', retries,
    'awaitedToDateTS', due_ts, 'lastAccess', seconds(now_ms))
  redis.call('ZADD', KEYS[3], due_ts, member)
  place(order, score, until_ms, 'P', actor)
  note('taken', cjson.decode(member).rsId, { k = conversation, a = retries })
  return { 'taken', whole(score), retries, whole(until_ms - now_ms), found[3], found[4], found[5],
    found[6], found[7], found[8] }
end

local answers = {}
for item = 1, items do
  local a = 9 + 3 * item
  answers[item] = take(1 + 5 * item, ARGV[a], ARGV[a + 1], ARGV[a + 2])
end
wake_others()
journal_append('conversations')
return answers
