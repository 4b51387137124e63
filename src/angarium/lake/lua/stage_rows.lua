#!lua
-- Guarantee: a chunk of rows gets its place on a task's own list once, however often it is sent.
-- KEYS: 1 staged list
-- ARGV: 1 number of the chunk, from 0; 2 expiry_ms of a list that nobody commits; 3 the chunk
-- Returns: {'staged'} | {'already'} | {'missing'} when chunks before this one are gone
-- Events: none
-- Repeats: safe
local length = redis.call('LLEN', KEYS[1])
local number = tonumber(ARGV[1])
if length > number then return { 'already' } end
if length < number then return { 'missing' } end
redis.call('RPUSH', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return { 'staged' }
