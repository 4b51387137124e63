-- Shared by the scripts of conversations; stands behind `transition` and the generated names.
-- Every reply in flight is a member of pendingMessages; its removal is the reply's one end.
-- The order hash of a conversation has all that decides the order:
--   n               position of its newest request
--   q<request key>  «position until_ms answered», for each request in its list
--   <score>         «until_ms state holder#end_ms», for each reply: its place. State P: to be sent,
--                   S: sent and not acknowledged. Holder: who may send it, until end_ms; «-»: nobody;
--                   «@required sender»: it waits for a process with that sender
-- A required sender is «n:<sender>», or «o:<origin>» for a reply that names no sender: the sender
-- of that name can send it, and so can «default». waitingSender:<required sender> has the replies
-- that wait for it, scored by since when (ms); waitingSender:n and waitingSender:o have the required
-- senders of each kind, scored by when the last reply came. These sets are an index: the place is
-- authoritative, and every reply is also found by its time in pendingMessages.

-- Score = position × SPAN + number of the reply: exact for 2^27 requests of 2^26 replies.
local SPAN, POSITIONS_MAX = 67108864, 134217727
-- Processes hold this many replies of one conversation. Replies behind wait in Redis until it is
-- nearly their turn, so that one long conversation does not fill the memory queues.
local WINDOW = 64

local function integer(number) return string.format('%.0f', number) end
local function seconds(ms) return string.format('%.3f', ms / 1000) end

-- A sent reply has a 5 as fourth decimal of its time in pendingMessages: the list of its
-- conversation may expire before anyone looks, and it must not count as unsent then.
local function sent_seconds(ms) return string.format('%.3f5', ms / 1000) end
local function was_sent(due) return math.floor(due * 10000 + 0.5) % 10 == 5 end

local function read_request_entry(order, request)
  local entry = redis.call('HGET', order, 'q' .. request)
  if not entry then return nil end
  local position, until_ms, answered = string.match(entry, '^(%d+) (%d+) (%d)$')
  return tonumber(position), tonumber(until_ms), answered == '1'
end

-- until_ms, state, holder, and the end of the hold (0 if nobody holds it).
local function read_place(order, score)
  local entry = redis.call('HGET', order, integer(score))
  if not entry then return nil end
  local until_ms, state, holder, end_ms = string.match(entry, '^(%d+) (%u) ([^%s#]+)#?(%d*)$')
  return tonumber(until_ms), state, holder, tonumber(end_ms) or 0
end

local function place(until_ms, state, holder, end_ms)
  local entry = integer(until_ms) .. ' ' .. state .. ' ' .. holder
  return end_ms and entry .. '#' .. integer(end_ms) or entry
end

local function write_place(order, score, ...)
  redis.call('HSET', order, integer(score), place(...))
end

-- Whether somebody else may be sending the reply at this moment.
local function held_by_another(holder, end_ms) return end_ms > now_ms and holder ~= own end

local own_senders
local function can_send(required)
  if senders == '' then return true end
  if not own_senders then
    own_senders = {}
    for _, name in ipairs(cjson.decode(senders)) do own_senders[name] = true end
  end
  if own_senders[string.sub(required, 3)] then return true end
  return string.sub(required, 1, 1) == 'o' and own_senders.default == true
end

-- The holder of a reply that waits for this sender; a holder has no white space and no «#».
local function waiting_holder(required)
  return '@' .. string.gsub(required, '[%s%%#]', function(char)
    return string.format('%%%02X', string.byte(char))
  end)
end

-- The required sender in such a holder; nil for any other holder.
local function required_in(holder)
  if not holder or string.sub(holder, 1, 1) ~= '@' then return nil end
  return (string.gsub(string.sub(holder, 2), '%%(%x%x)', function(hex)
    return string.char(tonumber(hex, 16))
  end))
end

local function drop_empty_wait(required)
  if redis.call('EXISTS', waiting_stem .. required) == 0 then
    redis.call('ZREM', waiting_stem .. string.sub(required, 1, 1), required)
  end
end

-- Called before a reply gets another holder or ends.
local function leave_sender_wait(holder, member)
  local required = required_in(holder)
  if required and redis.call('ZREM', waiting_stem .. required, member) == 1 then
    drop_empty_wait(required)
  end
end

local function has_replies(responses, score)
  local first = math.floor(score / SPAN) * SPAN
  return redis.call('ZRANGE', responses, integer(first), integer(first + SPAN - 1),
    'BYSCORE', 'LIMIT', 0, 1)[1] ~= nil
end

-- Ends a reply. Only the call that removes it from pendingMessages writes the event.
local function remove_reply(responses, order, member, score, event, more)
  local _, _, holder = read_place(order, score)
  leave_sender_wait(holder, member)
  redis.call('ZREM', responses, member)
  redis.call('HDEL', order, integer(score))
  if redis.call('ZREM', pending_key, member) == 1 then
    note(event, cjson.decode(member).rsId, more)
  end
end

-- Ends a reply whose time is over: delivered if it was sent, else expired.
local function end_expired(responses, order, member, score, state, conversation_id)
  if state == 'S' then
    remove_reply(responses, order, member, score, 'delivered',
      { k = conversation_id, t = 'unacknowledged' })
    return 'delivered'
  end
  remove_reply(responses, order, member, score, 'expired', { k = conversation_id })
  return 'expired'
end

-- Whether the removed reply of this score was the last of its request; `head`: the first one left.
local function last_of_request(head, responses, score)
  if not head[1] then return true end
  local position, first = math.floor(score / SPAN), math.floor(head[2] / SPAN)
  if first >= position then return first > position end
  return not has_replies(responses, score)
end

-- Hints for other processes; `wake_others` publishes them once per batch.
local woken, due_replies, required_senders = {}, false, {}

-- The first reply may be sendable now. Returns its member if the caller holds it, else ''.
local function wake_next(head, responses, order, conversation_id)
  if not head[1] then return '' end
  local _, state, holder = read_place(order, tonumber(head[2]))
  if state == 'S' then return '' end
  if holder == own then return head[1] end
  if holder == '-' then
    -- Nobody holds it: it becomes due now, with some of the replies behind it.
    local near = redis.call('ZRANGE', responses, 0, WINDOW / 2 - 1, 'WITHSCORES')
    for number = 1, #near, 2 do
      local _, _, other = read_place(order, tonumber(near[number + 1]))
      if other == '-' then redis.call('ZADD', pending_key, 'XX', seconds(now_ms), near[number]) end
    end
    due_replies = true
  elseif holder and not required_in(holder) then
    woken[#woken + 1] = conversation_id
  end
  return ''
end

-- The same, after the reply of this score has ended. If a reply ahead of it is left, nothing was
-- unblocked, and the back-off of that reply must not be shortened.
local function wake_after(score, head, responses, order, conversation_id)
  if head[1] and tonumber(head[2]) < score then return '' end
  return wake_next(head, responses, order, conversation_id)
end

local function wake_others()
  if #woken == 0 and #required_senders == 0 and not due_replies then return end
  local hints = { due = due_replies }
  if #woken > 0 then hints.woken = woken end
  if #required_senders > 0 then hints.needs = required_senders end
  redis.call('PUBLISH', wake_channel, cjson.encode(hints))
end
