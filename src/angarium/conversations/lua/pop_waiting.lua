#!lua
-- Guarantee: a reply that waits for a sender of this process goes to one caller. If the caller does
-- not take it, it is due again after `pending_ttl`.
-- Events: none; taking a reply writes its event
-- Repeats: no, a second call pops other replies
-- include: transition
-- include: conversation
return each_item(function(most)
  local popped, claim = {}, seconds(now_ms + pending_ttl)

  local function pop(required)
    if #popped >= most then return end
    local found = redis.call('ZPOPMIN', waiting_stem .. required, most - #popped)
    for number = 1, #found, 2 do
      popped[#popped + 1] = found[number]
      redis.call('ZADD', pending_key, 'XX', 'LT', claim, found[number])
    end
    drop_empty_wait(required)
  end

  -- All required senders of a kind; those whose last reply came longest ago first.
  local function pop_kind(kind)
    for _, required in ipairs(redis.call('ZRANGE', waiting_stem .. kind, 0, most - 1)) do
      pop(required)
    end
  end

  if redis.call('EXISTS', waiting_stem .. 'n', waiting_stem .. 'o') == 0 then
    return reply.popped(popped)
  end
  if senders == '' then
    pop_kind('n')
    pop_kind('o')
    return reply.popped(popped)
  end
  for _, name in ipairs(cjson.decode(senders)) do
    pop('n:' .. name)
    pop('o:' .. name)
  end
  if can_send('o:') then pop_kind('o') end
  return reply.popped(popped)
end)
