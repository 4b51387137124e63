#!lua
-- Guarantee: a token gets one notification in each interval at most, whichever queues they are of.
-- KEYS: 3 last
-- ARGV: 4 hashed token, 5 interval_ms
-- Returns: {'granted'} its interval begins now | {'wait', ms left}
-- Events: none, the end of the notification is noted
-- Repeats: no, the second call would find the interval of the first
-- include: transition
local interval_ms = tonumber(ARGV[5])
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now_ms - interval_ms))
local last_ms = tonumber(redis.call('ZSCORE', KEYS[3], ARGV[4]))
-- A clock that was set back must not silence a token for longer than its interval.
if last_ms and last_ms <= now_ms then return { 'wait', last_ms + interval_ms - now_ms } end
redis.call('ZADD', KEYS[3], string.format('%.0f', now_ms), ARGV[4])
return { 'granted' }
