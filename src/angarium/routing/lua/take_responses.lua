#!lua
-- Guarantee: each answer is given to one relay: the one that it is for, where that can be seen.
-- KEYS: 3 list
-- ARGV: 4 how the calls of this relay begin, or '' when the list is its own, 5 answers_max
-- Returns: answers, oldest first
-- Events: none, an answer is not a message
-- Repeats: no, callers of a lost reply run into their time-out
-- include: transition
local answers_max = tonumber(ARGV[5])
if ARGV[4] == '' then return redis.call('LPOP', KEYS[3], answers_max) or {} end
local found = {}
for _, answer in ipairs(redis.call('LRANGE', KEYS[3], 0, answers_max - 1)) do
  if string.find(answer, ARGV[4], 1, true) then
    redis.call('LREM', KEYS[3], 1, answer)
    found[#found + 1] = answer
  end
end
-- Answers for relays that are gone would gather for ever.
redis.call('LTRIM', KEYS[3], -answers_max, -1)
return found
