#!lua flags=no-writes
-- Guarantee: the replies of one request that are in flight, in order or the last first.
-- KEYS: 3–6 as in the include; then request, responses
-- ARGV: 4–11 as in the include, 12 most to list, 13 MinMessageInfo of one of the replies or '',
-- 14 '1' for the last first
-- Returns: {MinMessageInfo, …}
-- Events: none
-- Repeats: safe
-- include: transition
-- include: conversation
local score = ARGV[13] ~= '' and tonumber(redis.call('ZSCORE', KEYS[8], ARGV[13]) or nil)
local position = score and math.floor(score / SPAN)
  or tonumber(redis.call('HGET', KEYS[7], 'position') or nil)
if not position then return {} end
local first, last = integer(position * SPAN), integer(position * SPAN + SPAN - 1)
if ARGV[14] == '1' then
  return redis.call('ZRANGE', KEYS[8], last, first, 'BYSCORE', 'REV', 'LIMIT', 0, items)
end
return redis.call('ZRANGE', KEYS[8], first, last, 'BYSCORE', 'LIMIT', 0, items)
