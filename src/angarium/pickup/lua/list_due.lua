#!lua flags=no-writes
-- Guarantee: lists the periodic work of a partition that is due now.
-- KEYS: 3 gateways, 4 due, 5 ages, 6 burials
-- ARGV: 4 threshold_ms, 5 count_max of each list
-- Returns: {dead gateways, queues with sent messages whose time is over, queues with old messages,
-- queues with removed messages whose rows are still in the database}
-- Events: none
-- Repeats: safe
-- include: transition
local function up_to(key, ms)
  return redis.call('ZRANGEBYSCORE', key, '-inf', string.format('%.0f', ms), 'LIMIT', 0, ARGV[5])
end
return {
  up_to(KEYS[3], now_ms - 1), up_to(KEYS[4], now_ms), up_to(KEYS[5], now_ms - tonumber(ARGV[4])),
  redis.call('SRANDMEMBER', KEYS[6], ARGV[5]),
}
