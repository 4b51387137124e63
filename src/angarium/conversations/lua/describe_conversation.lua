#!lua flags=no-writes
-- Guarantee: the order of a conversation at one moment. Times of `due` are in seconds, others in ms.
-- Events: none
-- Repeats: safe
-- include: transition
-- include: conversation
return each_item(function(conversation_id, most, requests_key, responses_key, order_key)
  local asked, replies = {}, {}
  for _, key in ipairs(redis.call('LRANGE', requests_key, 0, most - 1)) do
    local position, until_ms, answered = read_request_entry(order_key, key)
    if position then
      for _, value in ipairs({ key, position, integer(until_ms), answered and 1 or 0 }) do
        asked[#asked + 1] = value
      end
    end
  end
  local found = redis.call('ZRANGE', responses_key, 0, most - 1, 'WITHSCORES')
  for number = 1, #found, 2 do
    local score = tonumber(found[number + 1])
    local until_ms, state, holder = read_place(order_key, score)
    local due = redis.call('ZSCORE', pending_key, found[number]) or '0'
    local required = required_in(holder) or ''
    local since = required ~= '' and redis.call('ZSCORE', waiting_stem .. required, found[number]) or '0'
    for _, value in ipairs({ found[number], integer(score), integer(until_ms or 0), state or 'P',
      holder or '-', due, required, since }) do
      replies[#replies + 1] = value
    end
  end
  return reply.described(integer(now_ms), redis.call('LLEN', requests_key),
    redis.call('ZCARD', responses_key), asked, replies)
end)
