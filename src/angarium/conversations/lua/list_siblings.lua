#!lua flags=no-writes
-- Guarantee: the replies of one request that are in flight, in order or the last first.
-- KEYS: 3 pendingMessages, 4 openRequests, 5 newMessages; then request, responses
-- ARGV: 4–10 as in the include, 11 most to list, 12 MinMessageInfo of one of them or
-- '', 13 whether the last comes first
-- Returns: {MinMessageInfo, …}
-- Events: none
-- Repeats: safe
-- include: transition
-- include: conversation
local score = ARGV[12] ~= '' and tonumber(redis.call('ZSCORE', KEYS[7], ARGV[12]) or nil)
local position = score and math.floor(score / SPAN)
  or tonumber(redis.call('HGET', KEYS[6], 'position') or nil)
if not position then return {} end
local first, last = whole(position * SPAN), whole(position * SPAN + SPAN - 1)
if ARGV[13] == '1' then
  return redis.call('ZRANGE', KEYS[7], last, first, 'BYSCORE', 'REV', 'LIMIT', 0, items)
end
return redis.call('ZRANGE', KEYS[7], first, last, 'BYSCORE', 'LIMIT', 0, items)
