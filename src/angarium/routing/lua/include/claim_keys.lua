-- The body of `claim_keys`, for both layouts.
local function hold(key, number)
  newly_ready[#newly_ready + 1] = band(number, CLAIMED) + tick
  newly_ready[#newly_ready + 1] = key
end

local function claim_acapy(uid, keys_max)
  -- Other programs do not record which keys are ready: the counts show it.
  local found = {}
  for _, key in ipairs(layout.list(uid).keys) do
    if #found >= keys_max then break end
    if count_of(uid, key) >= 1 then
      found[#found + 1] = key
      hold(key, 0)
    end
  end
  write_ready()
  return reply.claimed(found, {})
end

return each_item(function(uid, session, keys_max, again)
  if not layout.known(uid) or superseded(uid, session) then return reply.unknown end
  if layout_name == 'acapy' then return claim_acapy(uid, keys_max) end
  local number = layout.number(uid)
  local before = again and layout.in_hand_keys(uid) or {}
  local ready = redis.call('ZRANGEBYSCORE', mail_key, exactly(band(number, READY)),
    below(band(number, CLAIMED)), 'LIMIT', 0, keys_max)
  if #ready > 0 then
    for _, key in ipairs(ready) do hold(key, number) end
    write_ready()
    layout.touch(uid)
  end
  return reply.claimed(before, ready)
end)
