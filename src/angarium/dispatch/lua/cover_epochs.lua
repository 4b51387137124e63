#!lua flags=allow-oom
-- Guarantee: under the newest term, the record says that all messages before an epoch are accepted,
-- so no takeover compares them again. The recorded epoch only grows.
-- Events: none, `accepted` was journalled before
-- Repeats: safe
-- include: transition
-- include: fence
if fenced_off(term_key, term) then return reply.stale end
local epoch_text = string.format('%.0f', covered_epoch)
if covered_epoch > tonumber(redis.call('GET', covered_key) or 0) then
  redis.call('SET', covered_key, epoch_text)
end
each_item(function(epoch, digests_key) redis.call('DEL', digests_key) end)
redis.call('PUBLISH', marker_channel, 'covered ' .. partition .. ' ' .. epoch_text)
return reply.covered
