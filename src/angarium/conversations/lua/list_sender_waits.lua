#!lua flags=no-writes
-- Guarantee: how many replies wait for a process with their sender, by what they need.
-- KEYS: 3–6 as in the include
-- ARGV: 4–11 as in the include, 12 most needs of each kind to list
-- Returns: {now_ms, need, replies, since when the first waits (ms), …}
-- Events: none
-- Repeats: safe
-- include: transition
-- include: conversation
local found = { whole(now_ms) }
local oldest_ms = whole(now_ms - awaited_ttl)
for _, kind in ipairs({ 'n', 'o' }) do
  for _, need in ipairs(redis.call('ZRANGE', KEYS[6] .. kind, 0, items - 1)) do
    local number = redis.call('ZCOUNT', KEYS[6] .. need, oldest_ms, '+inf')
    local first = redis.call('ZRANGE', KEYS[6] .. need, oldest_ms, '+inf', 'BYSCORE', 'LIMIT', 0, 1,
      'WITHSCORES')
    if number > 0 then
      found[#found + 1] = need
      found[#found + 1] = number
      found[#found + 1] = first[2]
    end
  end
end
return found
