#!lua
-- Guarantee: queues the dead letter of this id again with no retries counted, or changes nothing.
-- KEYS: 3 outbound list, 4 dead letters
-- ARGV: 4 wake channel, 5 partition, 6 message id, 7 dead letters to search, oldest first
-- Returns: 'revived' | 'unknown' | 'unreadable' (it stays a dead letter)
-- Events: outbound_accepted
-- Repeats: safe, a second call returns unknown
-- include: transition
for _, entry in ipairs(redis.call('LRANGE', KEYS[4], 0, tonumber(ARGV[7]) - 1)) do
  local good, found = pcall(cjson.decode, entry)
  if good and type(found) == 'table' and found.id == ARGV[6] then
    local message = found.message
    if type(message) ~= 'string' or not pcall(cjson.decode, message) then return 'unreadable' end
    redis.call('LREM', KEYS[4], 1, entry)
    redis.call('RPUSH', KEYS[3], (string.gsub(message, '"retries":%s*%d+', '"retries":0')))
    -- settle_outbound writes the event for an item without an id, as the first time.
    if string.find(message, '^{"id":') then note('outbound_accepted', found.id, { d = 'revived' }) end
    redis.call('PUBLISH', ARGV[4], ARGV[5])
    journal_append('routing')
    return 'revived'
  end
end
return 'unknown'
