#!lua
-- Guarantee: a chunk of rows gets its place on a task's own list once, however often it is sent.
-- Chunks count from 0; 'missing' if some before this one are gone. A list that nobody commits expires.
-- Events: none
-- Repeats: safe
local length = redis.call('LLEN', staged_key)
if length > number then return reply.already end
if length < number then return reply.missing end
redis.call('RPUSH', staged_key, chunk)
redis.call('PEXPIRE', staged_key, expiry_ms)
return reply.staged
