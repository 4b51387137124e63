#!lua
-- Guarantee: a claimed reply becomes PENDING in this process, unless another process took it. A reply
-- whose sender this process lacks waits for a process that has it: no process holds it, and its
-- place and retries do not change. An expired reply ends here, and the next reply is woken.
-- KEYS: 3–6 as in the include; per item: request, response, requests, responses, order
-- ARGV: 4–11 as in the include, 12 number of items; per item: conversation id, MinMessageInfo, claim
-- ('': a new reply, 'waiting': a reply that waits for its sender), '1' if a process of 0.1.0 runs,
-- which takes every reply
-- Returns: per item {'taken', score, retries, ms left, task, origin, correlator, request timestamp,
-- response timestamp, send attempts} | {'expired', next} | {'delivered', next} |
-- {'no_sender', required sender} | {'awaited'}: too far behind | {'later'}: the call already returns
-- enough bytes | {'sent'} | {'lost'}: another process took it | {'gone'}; next: MinMessageInfo of
-- the next reply if this process holds it, or ''
-- Events: taken, awaited, expired, delivered (module conversations)
-- Repeats: no, a second call finds the claim used and returns 'lost'
-- include: transition
-- include: conversation
local FIELDS = { 'status', 'awaitedRetries', 'taskItem', 'origin', 'corr', 'requestTimestamp',
  'responseTimestamp', 'sentAttempt', 'sender', 'untried' }
-- A process of 0.1.0 finds replies only when they are due: while one runs, they are due this soon.
local RECHECK_MS = 1000
-- A call that returns this many bytes takes no more replies; they are offered again.
local BYTES_MAX = 8388608
local taken_bytes = 0
local hinted = {}

local function expire(k, conversation, member, score, state)
  -- The hash expires by itself at this time; its key may already hold another reply.
  local event = end_expired(KEYS[k + 3], KEYS[k + 4], member, score, state, conversation)
  local head = redis.call('ZRANGE', KEYS[k + 3], 0, 0, 'WITHSCORES')
  if last_of_request(head, KEYS[k + 3], score) then
    redis.call('HDEL', KEYS[k + 4], 'q' .. KEYS[k])
    redis.call('LREM', KEYS[k + 2], 1, KEYS[k])
  end
  return { event, wake_after(score, head, KEYS[k + 3], KEYS[k + 4], conversation) }
end

-- Removes the places of replies whose list has expired, and the requests they answered.
local function remove_places(requests, order)
  for _, name in ipairs(redis.call('HKEYS', order)) do
    local request = string.match(name, '^q(.*)$')
    if not request then
      if name ~= 'n' then redis.call('HDEL', order, name) end
    else
      local _, _, answered = read_request_entry(order, request)
      if answered then
        redis.call('HDEL', order, name)
        redis.call('LREM', requests, 1, request)
      end
    end
  end
end

-- Adds the reply to those that wait for this sender: (whether it is new there, since when it waits).
local function join_sender_wait(required, member)
  local set, kind = KEYS[6] .. required, KEYS[6] .. string.sub(required, 1, 1)
  -- No reply waits longer than its time to live: older entries are leftovers.
  local oldest = '(' .. integer(now_ms - awaited_ttl)
  redis.call('ZREMRANGEBYSCORE', set, '-inf', oldest)
  redis.call('ZREMRANGEBYSCORE', kind, '-inf', oldest)
  local joined = redis.call('ZADD', set, 'NX', integer(now_ms), member) == 1
  redis.call('ZADD', kind, integer(now_ms), required)
  redis.call('PEXPIRE', set, awaited_ttl)
  redis.call('PEXPIRE', kind, awaited_ttl)
  return joined, tonumber(redis.call('ZSCORE', set, member))
end

-- This process can't send the reply. A process that has the sender finds it in the wait set. The
-- reply is due again when its wait has doubled, in case the hint was lost.
local function wait_for_sender(k, required, reply)
  local member, score, until_ms = reply.member, reply.score, reply.until_ms
  local joined, since = join_sender_wait(required, member)
  if joined then
    if not hinted[required] then required_senders[#required_senders + 1] = required end
    hinted[required] = true
    due_replies = due_replies or (reply.old_version and reply.new)
  end
  local recheck_ms = math.max(pending_ttl, now_ms - since)
  if reply.old_version then recheck_ms = reply.new and 0 or RECHECK_MS end
  local due_ts = seconds(math.min(now_ms + recheck_ms, until_ms))
  redis.call('ZADD', KEYS[3], due_ts, member)
  redis.call('HSET', KEYS[k + 1], 'awaitedToDateTS', due_ts)
  write_place(KEYS[k + 4], score, until_ms, 'P', waiting_holder(required))
  if reply.status == 'PENDING' then
    redis.call('HSET', KEYS[k + 1], 'status', 'AWAITED')
    note('awaited', cjson.decode(member).rsId,
      { k = reply.conversation, a = tonumber(reply.retries), d = 'no sender ' .. string.sub(required, 3) })
  end
  return { 'no_sender', required }
end

local function take(k, conversation, member, claim, old_version)
  local response, responses, order = KEYS[k + 1], KEYS[k + 3], KEYS[k + 4]
  local due = redis.call('ZSCORE', KEYS[3], member)
  if not due then return { 'gone' } end
  local score = tonumber(redis.call('ZSCORE', responses, member) or nil)
  if not score then
    -- The whole list of replies may have expired.
    if redis.call('EXISTS', responses) == 0 then remove_places(KEYS[k + 2], order) end
    redis.call('ZREM', KEYS[3], member)
    note('expired', cjson.decode(member).rsId, { k = conversation })
    return { 'expired', '' }
  end
  local until_ms, state, holder = read_place(order, score)
  local found = redis.call('HMGET', response, unpack(FIELDS))
  local waited = required_in(holder) ~= nil
  if not until_ms or until_ms <= now_ms or not found[1] then
    return expire(k, conversation, member, score, state)
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
    leave_sender_wait(holder, member)
    write_place(order, score, until_ms, 'P', '-')
    if found[1] ~= 'AWAITED' then
      note('awaited', cjson.decode(member).rsId,
        { k = conversation, a = tonumber(found[2]), d = 'far behind' })
    end
    return { 'awaited' }
  end
  local required = required_sender_of(found[9], found[3], found[4])
  if not can_send(required) then
    return wait_for_sender(k, required, { conversation = conversation, member = member,
      new = claim == '', old_version = old_version, score = score, until_ms = until_ms, status = found[1],
      retries = found[2] })
  end
  if taken_bytes >= BYTES_MAX then
    if claim == '' then
      redis.call('LPUSH', KEYS[5], member)
    elseif claim == 'waiting' then
      join_sender_wait(required, member)
    else
      redis.call('ZADD', KEYS[3], seconds(now_ms), member)
    end
    return { 'later' }
  end
  taken_bytes = taken_bytes + #(found[3] or '')
  -- A wait for a sender or behind other replies is no try.
  local untried = found[1] == 'WAITING' or waited or (found[1] == 'AWAITED' and found[10] == '1')
  local retries = tonumber(found[2]) + (untried and 0 or 1)
  local due_ts = seconds(math.min(now_ms + pending_ttl, until_ms))
  redis.call('HSET', response, 'status', 'PENDING', 'awaitedRetries', retries,
    'awaitedToDateTS', due_ts, 'lastAccess', seconds(now_ms))
  redis.call('ZADD', KEYS[3], due_ts, member)
  leave_sender_wait(holder, member)
  write_place(order, score, until_ms, 'P', actor)
  note('taken', cjson.decode(member).rsId, { k = conversation, a = retries })
  return { 'taken', integer(score), retries, integer(until_ms - now_ms), found[3], found[4], found[5],
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
