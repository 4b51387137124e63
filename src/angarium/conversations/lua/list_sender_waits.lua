#!lua flags=no-writes
-- Guarantee: the number of replies that wait for a process with their sender, by required sender.
-- KEYS: 3–6 as in the include
-- ARGV: 4–11 as in the include, 12 most required senders of each kind to list
-- Returns: {now_ms, required sender, number of replies, since when the first waits (ms), …}
-- Events: none
-- Repeats: safe
-- include: transition
-- include: conversation
local found = { integer(now_ms) }
local oldest_ms = integer(now_ms - awaited_ttl)
for _, kind in ipairs({ 'n', 'o' }) do
  for _, required in ipairs(redis.call('ZRANGE', KEYS[6] .. kind, 0, items - 1)) do
    local number = redis.call('ZCOUNT', KEYS[6] .. required, oldest_ms, '+inf')
    local first = redis.call('ZRANGE', KEYS[6] .. required, oldest_ms, '+inf', 'BYSCORE', 'LIMIT', 0, 1,
      'WITHSCORES')
    if number > 0 then
      found[#found + 1] = required
      found[#found + 1] = number
      found[#found + 1] = first[2]
    end
  end
end
return found
