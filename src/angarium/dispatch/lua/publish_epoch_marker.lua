#!lua flags=allow-oom
-- Guarantee: all subscribers of one server receive this marker between the same two messages.
-- Events: none, no message changes its state
-- Repeats: safe, an additional marker only ends an epoch earlier
-- include: transition
local epoch = redis.call('INCR', epoch_key)
redis.call('PUBLISH', marker_channel, 'epoch ' .. string.format('%.0f', epoch))
return reply.published(epoch)
