#!lua
-- Guarantee: 'send' only if no reply is ahead of this one and every earlier request has a reply. The
-- script removes expired replies and requests ahead of it.
-- KEYS: 3–6 as in the include; per item: request, requests, responses, order
-- ARGV: 4–11 as in the include, 12 number of items; per item: conversation id, MinMessageInfo, '1' if
-- only the process that holds the reply may send it
-- Returns: per item {'send'} | {'wait_response', MinMessageInfo of the first reply, ms left, holder} |
-- {'wait_request', request key, ms left} | {'gone'}: sent, expired, or held by another process
-- Events: expired, delivered (module conversations)
-- Repeats: safe
-- include: transition
-- include: conversation

-- Most expired replies and requests that one call removes; the next call continues.
local EXPIRED_MAX = 500

local function check(k, conversation, member, only_mine)
  local requests, responses, order = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]
  local head = redis.call('ZRANGE', responses, 0, 0, 'WITHSCORES')
  local mine = head[1] == member and head[2] or redis.call('ZSCORE', responses, member)
  if not mine then return { 'gone' } end
  mine = tonumber(mine)
  local my_until_ms, my_state, my_holder = read_place(order, mine)
  if not my_until_ms or my_until_ms <= now_ms then
    end_expired(responses, order, member, mine, my_state, conversation)
    return { 'gone' }
  end
  if my_state == 'S' or (only_mine and my_holder ~= actor) then return { 'gone' } end
  local removed = false
  for _ = 1, EXPIRED_MAX do
    if head[1] ~= member then
      local until_ms, state, holder = read_place(order, tonumber(head[2]))
      if until_ms and until_ms > now_ms then
        if removed then wake_next(head, responses, order, conversation) end
        return { 'wait_response', head[1], integer(until_ms - now_ms), holder }
      end
      end_expired(responses, order, head[1], tonumber(head[2]), state, conversation)
      removed = true
      head = redis.call('ZRANGE', responses, 0, 0, 'WITHSCORES')
    else
      local request = redis.call('LINDEX', requests, 0)
      if not request or request == KEYS[k] then return { 'send' } end
      local position, until_ms, answered = read_request_entry(order, request)
      if position and position >= math.floor(mine / SPAN) then return { 'send' } end
      if position and not answered and until_ms > now_ms then
        return { 'wait_request', request, integer(until_ms - now_ms) }
      end
      -- The request is expired, or all of its replies are gone: this reply is the first one left.
      redis.call('LPOP', requests)
      redis.call('HDEL', order, 'q' .. request)
    end
  end
  return { 'wait_response', member, '0', '-' }
end

local answers = {}
for item = 1, items do
  local a = 10 + 3 * item
  answers[item] = check(3 + 4 * item, ARGV[a], ARGV[a + 1], ARGV[a + 2] == '1')
end
wake_others()
journal_append('conversations')
return answers
