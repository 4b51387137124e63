#!lua
-- Guarantee: 'send' only if no reply is ahead of this one and every earlier request has a reply; with
-- `only_mine` also only if the caller holds it, and then the hold lasts at least half of `pending_ttl`
-- longer, and the reply does not expire before its hold ends. The script removes expired replies and
-- requests ahead.
-- Events: expired, delivered (module conversations)
-- Repeats: safe
-- include: transition
-- include: conversation

-- Most expired replies and requests that one call removes; the next call continues.
local EXPIRED_MAX = 500

-- The ms that the hold lasts; renewed if it would end soon.
local function grant(member, mine, until_ms, end_ms, response_key, responses_key, order_key)
  if end_ms - now_ms >= pending_ttl / 2 and until_ms >= end_ms then return end_ms - now_ms end
  end_ms = now_ms + pending_ttl
  if until_ms < end_ms then
    -- Sent shortly before it expires: it must not be reported as expired meanwhile.
    until_ms = end_ms
    redis.call('HSET', response_key, 'expiresAtTS', seconds(until_ms))
    for _, key in ipairs({ response_key, responses_key, order_key }) do
      redis.call('PEXPIRE', key, pending_ttl, 'GT')
    end
  end
  redis.call('ZADD', pending_key, 'XX', seconds(end_ms), member)
  redis.call('HSET', response_key, 'awaitedToDateTS', seconds(end_ms))
  write_place(order_key, mine, until_ms, 'P', own, end_ms)
  return pending_ttl
end

local replies = each_item(function(conversation_id, request_id, response_id, member, only_mine,
    request_key, response_key, requests_key, responses_key, order_key)
  local head = redis.call('ZRANGE', responses_key, 0, 0, 'WITHSCORES')
  local mine = head[1] == member and head[2] or redis.call('ZSCORE', responses_key, member)
  if not mine then return reply.gone end
  mine = tonumber(mine)
  local my_until_ms, my_state, my_holder, my_end_ms = read_place(order_key, mine)
  if not my_until_ms or my_until_ms <= now_ms then
    end_expired(responses_key, order_key, member, mine, my_state, conversation_id)
    return reply.gone
  end
  if my_state == 'S' or (only_mine and my_holder ~= own) then return reply.gone end
  local removed = false
  for _ = 1, EXPIRED_MAX do
    if head[1] ~= member then
      local until_ms, state, holder = read_place(order_key, tonumber(head[2]))
      if until_ms and until_ms > now_ms then
        if removed then wake_next(head, responses_key, order_key, conversation_id) end
        return reply.wait_response(head[1], integer(until_ms - now_ms), holder)
      end
      end_expired(responses_key, order_key, head[1], tonumber(head[2]), state, conversation_id)
      removed = true
      head = redis.call('ZRANGE', responses_key, 0, 0, 'WITHSCORES')
    else
      local request = redis.call('LINDEX', requests_key, 0)
      local position, until_ms, answered
      if request and request ~= request_key then
        position, until_ms, answered = read_request_entry(order_key, request)
      end
      if not request or request == request_key
        or (position and position >= math.floor(mine / SPAN)) then
        if not only_mine then return reply.send(0) end
        return reply.send(grant(member, mine, my_until_ms, my_end_ms, response_key, responses_key,
          order_key))
      end
      if position and not answered and until_ms > now_ms then
        return reply.wait_request(request, integer(until_ms - now_ms))
      end
      -- The request is expired, or all of its replies are gone: this reply is the first one left.
      redis.call('LPOP', requests_key)
      redis.call('HDEL', order_key, 'q' .. request)
    end
  end
  return reply.wait_response(member, '0', '-')
end)
wake_others()
journal_append('conversations')
return replies
