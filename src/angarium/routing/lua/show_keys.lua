#!lua flags=no-writes
-- Guarantee: the state of each key at one moment.
-- KEYS: 3 counts, 4 iterator, 5 keys by instance, 6 owners, 7 last access, 8 mail; per item: list
-- ARGV: 4-8 as in include/layout_native; 9 number of items; per item: key
-- Returns: per item {uid or '', pending count, messages in the list, silent_ms of its owner or -1}
-- Events: none
-- Repeats: safe
-- include: transition
-- include: layout_native
-- include: layout_acapy
local replies = {}
for item = 1, tonumber(ARGV[9]) do
  local key = ARGV[9 + item]
  local uid = owner_of(key) or ''
  replies[item] = { uid, count_of(uid, key), redis.call('LLEN', KEYS[8 + item]),
    uid ~= '' and layout.silent_ms(uid) or -1 }
end
return replies
