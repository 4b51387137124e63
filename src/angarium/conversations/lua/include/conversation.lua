-- What the transitions of conversations share; stands behind `transition`.
--   KEYS  3 pendingMessages, 4 openRequests, 5 newMessages; a script's own begin at 6
--   ARGV  4 message_ttl, 5 awaited_ttl, 6 pending_ttl, 7 sent_ttl (all ms), 8 wake channel,
--         9 requests_max, 10 replies_max, 11 number of items; a script's own begin at 12
-- Every reply in flight is a member of pendingMessages: leaving it is its one terminal event.
-- A conversation's order hash tells what stands ahead without a look at any other key:
--   n               position of its newest request
--   q<request key>  «position until_ms answered», for each request in its list
--   <score>         «until_ms state holder», for each reply; state P: to be sent, S: sent and
--                   not acknowledged; holder «-»: nobody, «*»: nobody yet, in newMessages
local message_ttl, awaited_ttl = tonumber(ARGV[4]), tonumber(ARGV[5])
local pending_ttl, sent_ttl = tonumber(ARGV[6]), tonumber(ARGV[7])
local requests_max, replies_max = tonumber(ARGV[9]), tonumber(ARGV[10])
local items = tonumber(ARGV[11])
-- A score is position × SPAN + number of the reply: 2^27 requests of 2^26 replies are exact.
local SPAN, POSITIONS_MAX = 67108864, 134217727
-- So many replies of one conversation are held in processes' memories; those behind are AWAITED
-- until it is nearly their turn, so that one long conversation does not fill every memory.
local WINDOW = 64

local function whole(number) return string.format('%.0f', number) end
local function seconds(ms) return string.format('%.3f', ms / 1000) end

local function listed(order, request_key)
  local entry = redis.call('HGET', order, 'q' .. request_key)
  if not entry then return nil end
  local position, until_ms, answered = string.match(entry, '^(%d+) (%d+) (%d)$')
  return tonumber(position), tonumber(until_ms), answered == '1'
end

local function placed(order, score)
  local entry = redis.call('HGET', order, whole(score))
  if not entry then return nil end
  local until_ms, state, holder = string.match(entry, '^(%d+) (%u) (%S+)$')
  return tonumber(until_ms), state, holder
end

local function place(order, score, until_ms, state, holder)
  redis.call('HSET', order, whole(score), whole(until_ms) .. ' ' .. state .. ' ' .. holder)
end

local function has_replies(responses, score)
  local first = math.floor(score / SPAN) * SPAN
  return redis.call('ZRANGE', responses, whole(first), whole(first + SPAN - 1),
    'BYSCORE', 'LIMIT', 0, 1)[1] ~= nil
end

-- The end of a reply, noted once: whoever takes it from pendingMessages was the first.
local function take_out(responses, order, member, score, event, more)
  redis.call('ZREM', responses, member)
  redis.call('HDEL', order, whole(score))
  if redis.call('ZREM', KEYS[3], member) == 1 then
    note(event, cjson.decode(member).rsId, more)
  end
end

-- A reply whose time is over: sent long enough ago to count as delivered, or expired.
local function take_out_overdue(responses, order, member, score, state, conversation)
  if state == 'S' then
    take_out(responses, order, member, score, 'delivered',
      { k = conversation, t = 'unacknowledged' })
    return 'delivered'
  end
  take_out(responses, order, member, score, 'expired', { k = conversation })
  return 'expired'
end

-- After the reply of this score was taken out, `head` being the first that is left.
local function last_of_request(head, responses, score)
  if not head[1] then return true end
  local position, first = math.floor(score / SPAN), math.floor(head[2] / SPAN)
  if first >= position then return first > position end
  return not has_replies(responses, score)
end

-- Hints for other processes, published once for the whole batch by `wake_others`.
local woken, new_replies, due_replies = {}, false, false

-- The first reply may be able to go now. Answers its member if this process holds it.
local function wake_next(head, responses, order, conversation)
  if not head[1] then return '' end
  local _, state, holder = placed(order, tonumber(head[2]))
  if state == 'S' then return '' end
  if holder == actor then return head[1] end
  if holder == '-' then
    -- Awaited: nobody would look before its time, so its time is now, with some behind it.
    local near = redis.call('ZRANGE', responses, 0, WINDOW / 2 - 1, 'WITHSCORES')
    for number = 1, #near, 2 do
      local _, _, other = placed(order, tonumber(near[number + 1]))
      if other == '-' then redis.call('ZADD', KEYS[3], 'XX', seconds(now_ms), near[number]) end
    end
    due_replies = true
  elseif holder and holder ~= '*' then
    woken[#woken + 1] = conversation
  end
  return ''
end

-- The same, after the reply of this score has ended. What stood before it waits on as it did:
-- nothing was freed, and a back-off must not be cut short.
local function wake_after(score, head, responses, order, conversation)
  if head[1] and tonumber(head[2]) < score then return '' end
  return wake_next(head, responses, order, conversation)
end

local function wake_others()
  if #woken == 0 and not new_replies and not due_replies then return end
  local hints = { new = new_replies, due = due_replies }
  if #woken > 0 then hints.woken = woken end
  redis.call('PUBLISH', ARGV[8], cjson.encode(hints))
end
