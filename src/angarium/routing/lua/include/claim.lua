-- The body of `claim_keys`, for either layout.
local uid, keys_max, again = ARGV[9], tonumber(ARGV[10]), ARGV[11] == '1'
if not book.known(uid) then return { 'unknown' } end
local found = { 'claimed', 0 }
if ARGV[4] == 'acapy' then
  -- Other writers keep no list of what is ready: the counts tell.
  for _, key in ipairs(book.list(uid).keys) do
    if #found >= keys_max + 2 then break end
    if count_of(uid, key) >= 1 then found[#found + 1] = key end
  end
  found[2] = #found - 2
  return found
end
local number = book.number(uid)
if again then
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', mail_key, exactly(band(number, HELD)),
      below(band(number + 1, READY)))) do
    found[#found + 1] = key
  end
  found[2] = #found - 2
end
local ready = redis.call('ZRANGEBYSCORE', mail_key, exactly(band(number, READY)),
  below(band(number, HELD)), 'LIMIT', 0, keys_max)
if #ready > 0 then
  for _, key in ipairs(ready) do
    readied[#readied + 1] = band(number, HELD) + tick
    readied[#readied + 1] = key
    found[#found + 1] = key
  end
  write_ready()
  book.touch(uid)
end
return found
