-- The body of `claim_keys`, for both layouts.
return each_item(function(uid, session, keys_max, again)
  if not layout.known(uid) or superseded(uid, session) then return reply.unknown end
  if claim_acapy then return claim_acapy(uid, keys_max) end
  local number = layout.number(uid)
  local before = again and layout.in_hand_keys(uid) or {}
  local ready = redis.call('ZRANGEBYSCORE', mail_key, exactly(band(number, READY)),
    below(band(number, CLAIMED)), 'LIMIT', 0, keys_max)
  if #ready > 0 then
    for _, key in ipairs(ready) do
      newly_ready[#newly_ready + 1] = band(number, CLAIMED) + tick
      newly_ready[#newly_ready + 1] = key
    end
    write_ready()
    layout.touch(uid)
  end
  return reply.claimed(before, ready)
end)
