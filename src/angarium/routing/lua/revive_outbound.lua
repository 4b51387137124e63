#!lua
-- Guarantee: queues readable dead letters again, oldest first, with no retries counted.
-- KEYS: 3 outbound list, 4 dead letters
-- ARGV: 4 wake channel, 5 partition, 6 dead letters at most
-- Returns: {'revived', number}
-- Events: outbound_accepted for each
-- Repeats: no, a second call revives others
-- include: transition
local revived = 0
for _ = 1, math.min(tonumber(ARGV[6]), redis.call('LLEN', KEYS[4])) do
  local entry = redis.call('LPOP', KEYS[4])
  local good, found = pcall(cjson.decode, entry)
  local message = good and type(found) == 'table' and found.message
  local readable = type(message) == 'string' and pcall(cjson.decode, message)
  if readable then
    message = string.gsub(message, '"retries":%s*%d+', '"retries":0')
    redis.call('RPUSH', KEYS[3], message)
    -- settle_outbound writes the event for an item without an id, as the first time.
    if string.find(message, '^{"id":') then note('outbound_accepted', found.id, { d = 'revived' }) end
    revived = revived + 1
  else
    redis.call('RPUSH', KEYS[4], entry)
  end
end
redis.call('PUBLISH', ARGV[4], ARGV[5])
journal_append('routing')
return { 'revived', revived }
