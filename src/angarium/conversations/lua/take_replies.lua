#!lua
-- Guarantee: a claimed reply becomes PENDING in this process, unless another process took it. A reply
-- whose sender this process lacks waits for a process that has it: nobody holds it, and its place and
-- retries do not change. An expired reply ends here, and the next reply is woken. `claim`: the time of
-- a claim, or 'waiting' for a reply that waits for its sender. 'awaited': too far behind. 'later': the
-- call already returns enough bytes. 'lost': another process took it.
-- Events: taken, awaited, expired, delivered (module conversations)
-- Repeats: no, a second call finds the claim used and returns 'lost'
-- include: transition
-- include: conversation
local FIELDS = { 'status', 'awaitedRetries', 'taskItem', 'origin', 'corr', 'requestTimestamp',
  'responseTimestamp', 'sentAttempt', 'sender' }
-- A call that returns this many bytes takes no more replies; they are offered again.
local BYTES_MAX = 8388608
local taken_bytes = 0
local hinted = {}

local function expire(it, score, state)
  -- The hash expires by itself at this time; its key may already hold another reply.
  local event = end_expired(it.responses, it.order, it.member, score, state, it.conversation)
  local head = redis.call('ZRANGE', it.responses, 0, 0, 'WITHSCORES')
  if last_of_request(head, it.responses, score) then
    redis.call('HDEL', it.order, 'q' .. it.request)
    redis.call('LREM', it.requests, 1, it.request)
  end
  return reply[event](wake_after(score, head, it.responses, it.order, it.conversation))
end

-- Ends a reply whose list has expired. If the whole list is gone, so are the other replies in it: their
-- places are removed, and the requests they answered.
local function end_without_list(it, due)
  if redis.call('EXISTS', it.responses) == 0 then
    for _, name in ipairs(redis.call('HKEYS', it.order)) do
      local request = string.match(name, '^q(.*)$')
      if not request then
        if name ~= 'n' then redis.call('HDEL', it.order, name) end
      else
        local _, _, answered = read_request_entry(it.order, request)
        if answered then
          redis.call('HDEL', it.order, name)
          redis.call('LREM', it.requests, 1, request)
        end
      end
    end
  end
  redis.call('ZREM', pending_key, it.member)
  local sent = was_sent(due)
  note(sent and 'delivered' or 'expired', cjson.decode(it.member).rsId,
    { k = it.conversation, t = sent and 'unacknowledged' or nil })
  return reply[sent and 'delivered' or 'expired']('')
end

-- Adds the reply to those that wait for this sender: (whether it is new there, since when it waits).
local function join_sender_wait(required, member)
  local set, kind = waiting_stem .. required, waiting_stem .. string.sub(required, 1, 1)
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
local function wait_for_sender(it, required, score, until_ms, status, retries)
  local joined, since = join_sender_wait(required, it.member)
  if joined and not hinted[required] then
    required_senders[#required_senders + 1] = required
    hinted[required] = true
  end
  local due = seconds(math.min(now_ms + math.max(pending_ttl, now_ms - since), until_ms))
  redis.call('ZADD', pending_key, due, it.member)
  redis.call('HSET', it.response, 'awaitedToDateTS', due)
  write_place(it.order, score, until_ms, 'P', waiting_holder(required))
  if status == 'PENDING' then
    redis.call('HSET', it.response, 'status', 'AWAITED')
    note('awaited', cjson.decode(it.member).rsId,
      { k = it.conversation, a = tonumber(retries), d = 'no sender ' .. string.sub(required, 3) })
  end
  return reply.no_sender(required)
end

local function wait_far_behind(it, score, until_ms, holder, status, retries)
  redis.call('HSET', it.response, 'status', 'AWAITED', 'awaitedToDateTS', seconds(until_ms))
  redis.call('ZADD', pending_key, seconds(until_ms), it.member)
  leave_sender_wait(holder, it.member)
  write_place(it.order, score, until_ms, 'P', '-')
  if status ~= 'AWAITED' then
    note('awaited', cjson.decode(it.member).rsId,
      { k = it.conversation, a = tonumber(retries), d = 'far behind' })
  end
  return reply.awaited
end

local function take(it, claim)
  local due = tonumber(redis.call('ZSCORE', pending_key, it.member) or nil)
  if not due then return reply.gone end
  local score = tonumber(redis.call('ZSCORE', it.responses, it.member) or nil)
  if not score then return end_without_list(it, due) end
  local until_ms, state, holder, end_ms = read_place(it.order, score)
  local found = redis.call('HMGET', it.response, unpack(FIELDS))
  if not until_ms or until_ms <= now_ms or not found[1] then return expire(it, score, state) end
  if claim == 'waiting' then
    if not required_in(holder) then return reply.lost end
  elseif math.abs((was_sent(due) and due - 0.0005 or due) - claim) > 0.0002 then
    return reply.lost
  end
  if state == 'S' then
    redis.call('ZADD', pending_key, sent_seconds(until_ms), it.member)
    return reply.lost
  end
  local rank = redis.call('ZRANK', it.responses, it.member)
  if rank >= WINDOW then
    return wait_far_behind(it, score, until_ms, holder, found[1], found[2])
  end
  local required = found[9] or 'o:' .. (found[4] or '')
  if not can_send(required) then
    return wait_for_sender(it, required, score, until_ms, found[1], found[2])
  end
  if taken_bytes >= BYTES_MAX then
    if claim == 'waiting' then
      join_sender_wait(required, it.member)
    else
      redis.call('ZADD', pending_key, seconds(now_ms), it.member)
    end
    return reply.later
  end
  taken_bytes = taken_bytes + #(found[3] or '')
  -- Its holder died or was paused. Only the first reply of a conversation can have been tried.
  local tried = found[1] == 'PENDING' and end_ms > 0 and rank == 0
  local retries = tonumber(found[2]) + (tried and 1 or 0)
  local hold_ms = math.min(now_ms + pending_ttl, until_ms)
  redis.call('HSET', it.response, 'status', 'PENDING', 'awaitedRetries', retries,
    'awaitedToDateTS', seconds(hold_ms), 'lastAccess', seconds(now_ms))
  redis.call('ZADD', pending_key, seconds(hold_ms), it.member)
  leave_sender_wait(holder, it.member)
  write_place(it.order, score, until_ms, 'P', own, hold_ms)
  note('taken', cjson.decode(it.member).rsId, { k = it.conversation, a = retries })
  return reply.taken(integer(score), retries, integer(until_ms - now_ms), found[3] or '',
    found[4] or '', found[5] or '', found[6] or '0', found[7] or '0', found[8] or '0')
end

local replies = each_item(function(conversation_id, request_id, response_id, member, claim,
    request_key, response_key, requests_key, responses_key, order_key)
  return take({ conversation = conversation_id, member = member, request = request_key,
    response = response_key, requests = requests_key, responses = responses_key, order = order_key },
    claim)
end)
wake_others()
journal_append('conversations')
return replies
