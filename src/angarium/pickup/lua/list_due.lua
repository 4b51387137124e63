#!lua flags=no-writes
-- Guarantee: lists the periodic work of a partition that is due now: dead gateways, queues with sent
-- messages whose time is over, queues with old messages, queues with removed messages whose rows are
-- still in the database.
-- Events: none
-- Repeats: safe
-- include: transition
local function up_to(key, ms)
  return redis.call('ZRANGEBYSCORE', key, '-inf', string.format('%.0f', ms), 'LIMIT', 0, names_max)
end
return reply.due(up_to(gateways_key, now_ms - 1), up_to(due_key, now_ms),
  up_to(ages_key, now_ms - threshold_ms), redis.call('SRANDMEMBER', removed_queues_key, names_max))
