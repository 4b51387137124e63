-- The body of `claim_keys`, for both layouts.
local uid, keys_max, again = ARGV[9], tonumber(ARGV[10]), ARGV[11] == '1'
if not layout.known(uid) then return { 'unknown' } end
local found = { 'claimed', 0 }
if ARGV[4] == 'acapy' then
  -- Other programs do not record which keys are ready: the counts show it.
  for _, key in ipairs(layout.list(uid).keys) do
    if #found >= keys_max + 2 then break end
    if count_of(uid, key) >= 1 then found[#found + 1] = key end
  end
  found[2] = #found - 2
  return found
end
local number = layout.number(uid)
if again then
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', mail_key, exactly(band(number, CLAIMED)),
      below(band(number + 1, READY)))) do
    found[#found + 1] = key
  end
  found[2] = #found - 2
end
local ready = redis.call('ZRANGEBYSCORE', mail_key, exactly(band(number, READY)),
  below(band(number, CLAIMED)), 'LIMIT', 0, keys_max)
if #ready > 0 then
  for _, key in ipairs(ready) do
    newly_ready[#newly_ready + 1] = band(number, CLAIMED) + tick
    newly_ready[#newly_ready + 1] = key
    found[#found + 1] = key
  end
  write_ready()
  layout.touch(uid)
end
return found
