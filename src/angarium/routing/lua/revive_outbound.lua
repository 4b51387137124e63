#!lua
-- Guarantee: dead letters that can be read go back to the queue, oldest first, with fresh retries.
-- KEYS: 3 outbound list, 4 dead letters
-- ARGV: 4 wake channel, 5 partition, 6 chars_max
-- Returns: {'revived', how many}
-- Events: outbound_accepted for each
-- Repeats: no, a second call revives others
-- include: transition
local revived = 0
for _ = 1, math.min(tonumber(ARGV[6]), redis.call('LLEN', KEYS[4])) do
  local letter = redis.call('LPOP', KEYS[4])
  local good, found = pcall(cjson.decode, letter)
  local message = good and type(found) == 'table' and found.message
  local readable = type(message) == 'string' and pcall(cjson.decode, message)
  if readable then
    message = string.gsub(message, '"retries":%s*%d+', '"retries":0')
    redis.call('RPUSH', KEYS[3], message)
    -- One without an id is noted by the deliverer, as it was the first time.
    if string.find(message, '^{"id":') then note('outbound_accepted', found.id, { d = 'revived' }) end
    revived = revived + 1
  else
    redis.call('RPUSH', KEYS[4], letter)
  end
end
redis.call('PUBLISH', ARGV[4], ARGV[5])
journal_append('routing')
return { 'revived', revived }
