#!lua
-- Guarantee: a due reply goes to one caller. If the caller does not take it, it is due again after
-- `pending_ttl`. `next_due`: when the first of the other replies is due (s), or 0.
-- Events: none; taking a reply writes its event
-- Repeats: no, a second call claims other replies
-- include: transition
-- include: conversation
return each_item(function(most)
  local claim_ms = now_ms + pending_ttl
  local due = redis.call('ZRANGE', pending_key, '-inf', sent_seconds(now_ms), 'BYSCORE', 'LIMIT', 0, most,
    'WITHSCORES')
  local members = {}
  for number = 1, #due, 2 do
    local again = was_sent(due[number + 1]) and sent_seconds(claim_ms) or seconds(claim_ms)
    redis.call('ZADD', pending_key, again, due[number])
    members[#members + 1] = due[number]
  end
  local following = redis.call('ZRANGE', pending_key, 0, 0, 'WITHSCORES')
  return reply.claimed(seconds(claim_ms), integer(now_ms), following[2] or '0', members)
end)
