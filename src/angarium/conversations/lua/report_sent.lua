#!lua
-- Guarantee: a reply that a process has sent is SENT, also if another process holds it now. It blocks
-- the replies behind it until its ACK comes or `sent_ttl` ends. An ACK id stays with the first
-- reply that waits for it, so that an ACK never ends another reply.
-- KEYS: 3–6 as in the include; per item: response, responses, order, ack
-- ARGV: 4–11 as in the include, 12 number of items; per item: conversation id, response id,
-- MinMessageInfo, id of the expected ACK or ''
-- Returns: per item {'sent'} | {'ack_taken'}: sent, and no ACK can end it | {'repeated'} | {'gone'}
-- Events: sent (module conversations)
-- Repeats: safe, the second call returns 'repeated'
-- include: transition
-- include: conversation

-- Whether the ACK id belongs to this reply now.
local function register_ack(ack, member)
  if redis.call('SET', ack, member, 'NX', 'PX', sent_ttl) then return true end
  local other = redis.call('GET', ack)
  if other ~= member and redis.call('ZSCORE', KEYS[3], other) then return false end
  redis.call('SET', ack, member, 'PX', sent_ttl)
  return true
end

local answers = {}
for item = 1, items do
  local k, a = 3 + 4 * item, 9 + 4 * item
  local response, responses, order = KEYS[k], KEYS[k + 1], KEYS[k + 2]
  local member, ack_id = ARGV[a + 2], ARGV[a + 3]
  local found = redis.call('HMGET', response, 'status', 'sentAttempt', 'expiresAtTS')
  local score = tonumber(redis.call('ZSCORE', responses, member) or nil)
  if not found[1] or not score then
    answers[item] = { 'gone' }
  elseif found[1] == 'SENT' then
    answers[item] = { 'repeated' }
  else
    local attempt, until_ms = found[2] + 1, now_ms + sent_ttl
    local registered = ack_id == '' or register_ack(KEYS[k + 3], member)
    redis.call('HSET', response, 'status', 'SENT', 'sentAttempt', attempt,
      'asyncRequestId', registered and ack_id or '', 'awaitedToDateTS', seconds(until_ms),
      'expiresAtTS', seconds(until_ms), 'lastAccess', seconds(now_ms))
    redis.call('PEXPIRE', response, sent_ttl)
    if tonumber(found[3]) * 1000 < until_ms then
      -- Sent shortly before it expires: its place must still exist when the ACK comes.
      redis.call('PEXPIRE', responses, sent_ttl, 'GT')
      redis.call('PEXPIRE', order, sent_ttl, 'GT')
    end
    redis.call('ZADD', KEYS[3], seconds(until_ms), member)
    local _, _, holder = read_place(order, score)
    leave_sender_wait(holder, member)
    write_place(order, score, until_ms, 'S', actor)
    note('sent', ARGV[a + 1], { k = ARGV[a], a = attempt })
    answers[item] = { registered and 'sent' or 'ack_taken' }
  end
end
journal_append('conversations')
return answers
