#!lua
-- Guarantee: a notification that was sent or given up is done with, unless a newer one took its
-- place meanwhile, which then waits for its interval; one that failed is tried again later.
-- KEYS: 3 pushes due, 4 notes, 5 last
-- ARGV: 4 hashed token, 5 note as it was claimed, 6 message id, 7 'pushed' | 'push_failed' |
-- 'retry', 8 ms until the next try, or until a newer one may go
-- Returns: {'settled'} | {'retried'} | {'newer'}
-- Events: pushed, push_failed (room pickup)
-- Repeats: safe
-- include: transition
local token, outcome = ARGV[4], ARGV[7]
local found = redis.call('HGET', KEYS[4], token)
local ours = found and string.match(found, '^%d+ (.*)$') == ARGV[5]
if found and outcome ~= 'retry' and ours then
  redis.call('HDEL', KEYS[4], token)
  redis.call('ZREM', KEYS[3], token)
elseif found then
  redis.call('ZADD', KEYS[3], string.format('%.0f', now_ms + tonumber(ARGV[8])), token)
end
if outcome ~= 'retry' then note(outcome, ARGV[6]) end
journal_append('pickup')
if found and not ours then return { 'newer' } end
return { outcome == 'retry' and 'retried' or 'settled' }
