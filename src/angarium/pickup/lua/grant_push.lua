#!lua
-- Guarantee: a token gets at most one notification in each interval, for all queues together.
-- KEYS: 3 last
-- ARGV: 4 hashed token, 5 interval_ms
-- Returns: {'granted'} (its interval begins now) | {'wait', remaining ms}
-- Events: none, settle_push adds the event
-- Repeats: no, a repeat answers 'wait'
-- include: transition
local interval_ms = tonumber(ARGV[5])
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now_ms - interval_ms))
local last_ms = tonumber(redis.call('ZSCORE', KEYS[3], ARGV[4]))
-- If the clock was set back, a token must not wait longer than its interval.
if last_ms and last_ms <= now_ms then return { 'wait', last_ms + interval_ms - now_ms } end
redis.call('ZADD', KEYS[3], string.format('%.0f', now_ms), ARGV[4])
return { 'granted' }
