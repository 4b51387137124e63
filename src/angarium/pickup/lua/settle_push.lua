#!lua
-- Guarantee: a notification that was sent or given up is deleted. If a newer one has replaced it, the
-- newer one waits for its interval. A failed notification is tried again later; one that was not
-- tried keeps its number of tries.
-- KEYS: 3 pushes due, 4 pushes
-- ARGV: 4 hashed token, 5 notification as claimed, 6 message id, 7 'pushed' | 'push_failed' |
-- 'retry' | 'wait', 8 ms until the next try or the next notification, 9 tries before the claim
-- Returns: {'settled'} | {'later'} | {'newer'}
-- Events: pushed, push_failed (module pickup)
-- Repeats: safe
-- include: transition
local token, outcome = ARGV[4], ARGV[7]
local ended = outcome == 'pushed' or outcome == 'push_failed'
local body = string.match(redis.call('HGET', KEYS[4], token) or '', '^%d+ (.*)$')
local unchanged = body == ARGV[5]
if unchanged and ended then
  redis.call('HDEL', KEYS[4], token)
  redis.call('ZREM', KEYS[3], token)
elseif body then
  if unchanged and outcome == 'wait' then
    redis.call('HSET', KEYS[4], token, ARGV[9] .. ' ' .. body)
  end
  redis.call('ZADD', KEYS[3], string.format('%.0f', now_ms + tonumber(ARGV[8])), token)
end
if ended and body then note(outcome, ARGV[6]) end
journal_append('pickup')
if body and not unchanged then return { 'newer' } end
return { ended and 'settled' or 'later' }
