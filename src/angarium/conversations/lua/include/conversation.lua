-- What the transitions of conversations share; stands behind `transition`.
--   KEYS  3 pendingMessages, 4 openRequests, 5 newMessages, 6 waitingSender: (a stem); a
--         script's own begin at 7
--   ARGV  4 message_ttl, 5 awaited_ttl, 6 pending_ttl, 7 sent_ttl (all ms), 8 wake channel,
--         9 requests_max, 10 replies_max, 11 names of the process's senders as JSON or '' for
--         any, 12 number of items; a script's own begin at 13
-- Every reply in flight is a member of pendingMessages: leaving it is its one terminal event.
-- A conversation's order hash tells what stands ahead without a look at any other key:
--   n               position of its newest request
--   q<request key>  «position until_ms answered», for each request in its list
--   <score>         «until_ms state holder», for each reply; state P: to be sent, S: sent and
--                   not acknowledged; holder «-»: nobody, «*»: nobody yet, in newMessages,
--                   «@need»: nobody, it waits for a process with the sender that it needs
-- A need is «n:<sender>», or «o:<origin>» for a reply that names no sender: the sender of that
-- name can send it, and so can «default». waitingSender:<need> holds the replies that wait for
-- it, by since when (ms); waitingSender:n and waitingSender:o hold the needs of which there are
-- some, by when the last came. Only a hint to find them by: the place is the truth, and every
-- reply is looked at again by its time in pendingMessages.
local message_ttl, awaited_ttl = tonumber(ARGV[4]), tonumber(ARGV[5])
local pending_ttl, sent_ttl = tonumber(ARGV[6]), tonumber(ARGV[7])
local requests_max, replies_max = tonumber(ARGV[9]), tonumber(ARGV[10])
local items = tonumber(ARGV[12])
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

-- The need of a reply that a process without the field `sender` accepted is in its task.
local function need_of(sender, task, origin)
  if sender then return sender end
  local read, item = pcall(cjson.decode, task or '')
  local options = read and type(item) == 'table' and item.messageOptions
  if type(options) == 'table' then
    if type(options.sender) == 'string' then return 'n:' .. options.sender end
    if type(options.callbackUrl) == 'string' then return 'n:http' end
  end
  return 'o:' .. (origin or '')
end

local own_senders
local function can_send(need)
  if ARGV[11] == '' then return true end
  if not own_senders then
    own_senders = {}
    for _, name in ipairs(cjson.decode(ARGV[11])) do own_senders[name] = true end
  end
  if own_senders[string.sub(need, 3)] then return true end
  return string.sub(need, 1, 1) == 'o' and own_senders.default == true
end

-- The holder of a reply that waits for this need; a holder has no white space.
local function holder_of(need)
  return '@' .. string.gsub(need, '[%s%%]', function(char)
    return string.format('%%%02X', string.byte(char))
  end)
end

-- The need that stands in a holder; nil for any other holder.
local function need_in(holder)
  if not holder or string.sub(holder, 1, 1) ~= '@' then return nil end
  return (string.gsub(string.sub(holder, 2), '%%(%x%x)', function(hex)
    return string.char(tonumber(hex, 16))
  end))
end

local function forget_need(need)
  if redis.call('EXISTS', KEYS[6] .. need) == 0 then
    redis.call('ZREM', KEYS[6] .. string.sub(need, 1, 1), need)
  end
end

-- Before a reply gets another holder, or ends.
local function leave_waiting(holder, member)
  local need = need_in(holder)
  if need and redis.call('ZREM', KEYS[6] .. need, member) == 1 then forget_need(need) end
end

local function has_replies(responses, score)
  local first = math.floor(score / SPAN) * SPAN
  return redis.call('ZRANGE', responses, whole(first), whole(first + SPAN - 1),
    'BYSCORE', 'LIMIT', 0, 1)[1] ~= nil
end

-- The end of a reply, noted once: whoever takes it from pendingMessages was the first.
local function take_out(responses, order, member, score, event, more)
  local _, _, holder = placed(order, score)
  leave_waiting(holder, member)
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
local woken, new_replies, due_replies, needed = {}, false, false, {}

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
  elseif holder and holder ~= '*' and not need_in(holder) then
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
  if #woken == 0 and #needed == 0 and not new_replies and not due_replies then return end
  local hints = { new = new_replies, due = due_replies }
  if #woken > 0 then hints.woken = woken end
  if #needed > 0 then hints.needs = needed end
  redis.call('PUBLISH', ARGV[8], cjson.encode(hints))
end
