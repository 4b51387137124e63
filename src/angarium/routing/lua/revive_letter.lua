#!lua
-- Guarantee: the dead letter of this id goes back to the queue with fresh retries, or nothing changes.
-- KEYS: 3 outbound list, 4 dead letters
-- ARGV: 4 wake channel, 5 partition, 6 message id, 7 chars_max to look at, oldest first
-- Returns: 'revived' | 'unknown' | 'unreadable', which stays where it is
-- Events: outbound_accepted
-- Repeats: safe, the second call finds it gone
-- include: transition
for _, letter in ipairs(redis.call('LRANGE', KEYS[4], 0, tonumber(ARGV[7]) - 1)) do
  local good, found = pcall(cjson.decode, letter)
  if good and type(found) == 'table' and found.id == ARGV[6] then
    local message = found.message
    if type(message) ~= 'string' or not pcall(cjson.decode, message) then return 'unreadable' end
    redis.call('LREM', KEYS[4], 1, letter)
    redis.call('RPUSH', KEYS[3], (string.gsub(message, '"retries":%s*%d+', '"retries":0')))
    -- One without an id is noted by the deliverer, as it was the first time.
    if string.find(message, '^{"id":') then note('outbound_accepted', found.id, { d = 'revived' }) end
    redis.call('PUBLISH', ARGV[4], ARGV[5])
    journal_append('routing')
    return 'revived'
  end
end
return 'unknown'
