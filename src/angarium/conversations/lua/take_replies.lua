#!lua
-- Guarantee: a claimed reply becomes PENDING in this process, unless another has it by now. One
-- whose sender this process lacks waits for a process that has it: nobody holds it, its place and
-- its retries stay. One whose time is over ends here, and the one behind it is woken.
-- KEYS: 3–6 as in the include; per item: request, response, requests,
-- responses, order
-- ARGV: 4–11 as in the include, 12 number of items; per item: conversation id, MinMessageInfo,
-- the claim, '' for a reply that nobody held before or 'waiting' for one that waits for its
-- sender, '1' if processes run that take anything (0.1.0)
-- Returns: per item {'taken', score, retries, ms left, task, origin, correlator, request
-- timestamp, response timestamp, send attempts} | {'expired', next} | {'delivered', next} |
-- {'no_sender', need} | {'awaited'} too far behind | {'later'} more than one call may answer | {'sent'} | {'lost'} |
-- {'gone'}; next: MinMessageInfo of the next, if this process holds it
-- Events: taken, awaited, expired, delivered (module conversations)
-- Repeats: no, a second call finds the claim used up and answers 'lost'
-- include: transition
-- include: conversation
local FIELDS = { 'status', 'awaitedRetries', 'taskItem', 'origin', 'corr', 'requestTimestamp',
  'responseTimestamp', 'sentAttempt', 'sender', 'untried' }
-- A process of 0.1.0 finds replies by their time only: while one runs, it is this soon (ms).
local LOOK_SOON = 1000
-- Past this a call takes no more: what it answers travels as a whole. The rest is offered again.
local BYTES_MAX = 8388608
local taken_bytes = 0
local hinted = {}

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

-- Among those that wait for this need; whether it is new there, and since when it waits.
local function join_waiting(need, member)
  local set, kind = KEYS[6] .. need, KEYS[6] .. string.sub(need, 1, 1)
  -- Nothing waits longer than its time to live: what stayed behind is forgotten by that.
  local oldest = '(' .. whole(now_ms - awaited_ttl)
  redis.call('ZREMRANGEBYSCORE', set, '-inf', oldest)
  redis.call('ZREMRANGEBYSCORE', kind, '-inf', oldest)
  local joined = redis.call('ZADD', set, 'NX', whole(now_ms), member) == 1
  redis.call('ZADD', kind, whole(now_ms), need)
  redis.call('PEXPIRE', set, awaited_ttl)
  redis.call('PEXPIRE', kind, awaited_ttl)
  return joined, tonumber(redis.call('ZSCORE', set, member))
end

-- Nobody here can send it. It is looked at again when it has waited twice as long: seldom, and
-- only in case the hint to it was lost, since who has the sender finds it by its need.
local function wait_for_sender(k, need, reply)
  local member, score, until_ms = reply.member, reply.score, reply.until_ms
  local joined, since = join_waiting(need, member)
  if joined then
    if not hinted[need] then needed[#needed + 1] = need end
    hinted[need] = true
    due_replies = due_replies or (reply.older and reply.new)
  end
  local look_ms = math.max(pending_ttl, now_ms - since)
  if reply.older then look_ms = reply.new and 0 or LOOK_SOON end
  local due_ts = seconds(math.min(now_ms + look_ms, until_ms))
  redis.call('ZADD', KEYS[3], due_ts, member)
  redis.call('HSET', KEYS[k + 1], 'awaitedToDateTS', due_ts)
  place(KEYS[k + 4], score, until_ms, 'P', holder_of(need))
  if reply.status == 'PENDING' then
    redis.call('HSET', KEYS[k + 1], 'status', 'AWAITED')
    note('awaited', cjson.decode(member).rsId,
      { k = reply.conversation, a = tonumber(reply.retries), d = 'no sender ' .. string.sub(need, 3) })
  end
  return { 'no_sender', need }
end

local function take(k, conversation, member, claim, older)
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
  local until_ms, state, holder = placed(order, score)
  local found = redis.call('HMGET', response, unpack(FIELDS))
  local waited = need_in(holder) ~= nil
  if not until_ms or until_ms <= now_ms or not found[1] then
    return overdue(k, conversation, member, score, state)
  end
  if claim == '' and found[1] ~= 'WAITING' then return { 'lost' } end
  if claim == 'waiting' then
    if not waited then return { 'lost' } end
  elseif claim ~= '' and tonumber(due) ~= tonumber(claim) then
    return { 'lost' }
  end
  if state == 'S' then
    redis.call('ZADD', KEYS[3], seconds(until_ms), member)
    return { 'sent' }
  end
  if redis.call('ZRANK', responses, member) >= WINDOW then
    redis.call('HSET', response, 'status', 'AWAITED', 'awaitedToDateTS', seconds(until_ms))
    if found[1] ~= 'AWAITED' then redis.call('HSET', response, 'untried', 1) end
    redis.call('ZADD', KEYS[3], seconds(until_ms), member)
    leave_waiting(holder, member)
    place(order, score, until_ms, 'P', '-')
    if found[1] ~= 'AWAITED' then
      note('awaited', cjson.decode(member).rsId,
        { k = conversation, a = tonumber(found[2]), d = 'far behind' })
    end
    return { 'awaited' }
  end
  local need = need_of(found[9], found[3], found[4])
  if not can_send(need) then
    return wait_for_sender(k, need, { conversation = conversation, member = member,
      new = claim == '', older = older, score = score, until_ms = until_ms, status = found[1],
      retries = found[2] })
  end
  if taken_bytes >= BYTES_MAX then
    if claim == '' then
      redis.call('LPUSH', KEYS[5], member)
    elseif claim == 'waiting' then
      join_waiting(need, member)
    else
      redis.call('ZADD', KEYS[3], seconds(now_ms), member)
    end
    return { 'later' }
  end
  taken_bytes = taken_bytes + #(found[3] or '')
  -- Waiting, for a sender or behind others, was no try.
  local untried = found[1] == 'WAITING' or waited or (found[1] == 'AWAITED' and found[10] == '1')
  local retries = tonumber(found[2]) + (untried and 0 or 1)
  local due_ts = seconds(math.min(now_ms + pending_ttl, until_ms))
  redis.call('HSET', response, 'status', 'PENDING', 'awaitedRetries', retries,
    'awaitedToDateTS', due_ts, 'lastAccess', seconds(now_ms))
  redis.call('ZADD', KEYS[3], due_ts, member)
  leave_waiting(holder, member)
  place(order, score, until_ms, 'P', actor)
  note('taken', cjson.decode(member).rsId, { k = conversation, a = retries })
  return { 'taken', whole(score), retries, whole(until_ms - now_ms), found[3], found[4], found[5],
    found[6], found[7], found[8] }
end

local answers = {}
for item = 1, items do
  local a = 9 + 4 * item
  answers[item] = take(2 + 5 * item, ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3] == '1')
end
wake_others()
journal_append('conversations')
return answers
