#!lua
-- Guarantee: queues a readable dead letter again with no retries counted, or changes nothing.
-- Events: outbound_accepted for each
-- Repeats: safe, a second call returns unknown
-- include: transition
local function message_in(entry)
  local good, found = pcall(cjson.decode, entry)
  local message = good and type(found) == 'table' and found.message
  return type(message) == 'string' and pcall(cjson.decode, message) and message or nil
end

local replies = each_item(function(message_id, entry)
  local message = message_in(entry)
  if not message then return reply.unreadable end
  if redis.call('LREM', dead_key, 1, entry) == 0 then return reply.unknown end
  redis.call('RPUSH', outbound_key, (string.gsub(message, '"retries":%s*%d+', '"retries":0')))
  -- settle_outbound writes the event for an item without an id, as the first time.
  if string.find(message, '^{"id":') then note('outbound_accepted', message_id, { d = 'revived' }) end
  return reply.revived
end)
redis.call('PUBLISH', wake_channel, partition)
journal_append('routing')
return replies
