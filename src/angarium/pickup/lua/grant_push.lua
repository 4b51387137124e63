#!lua
-- Guarantee: a token gets at most one notification in each interval, for all queues together. Its
-- interval begins when it is granted.
-- Events: none, settle_push adds the event
-- Repeats: no, a repeat answers 'wait'
-- include: transition
redis.call('ZREMRANGEBYSCORE', pushed_key, '-inf', string.format('%.0f', now_ms - interval_ms))
local last_ms = tonumber(redis.call('ZSCORE', pushed_key, token))
-- If the clock was set back, a token must not wait longer than its interval.
if last_ms and last_ms <= now_ms then return reply.wait(last_ms + interval_ms - now_ms) end
redis.call('ZADD', pushed_key, string.format('%.0f', now_ms), token)
return reply.granted
