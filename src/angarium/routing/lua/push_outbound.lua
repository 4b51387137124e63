#!lua
-- Guarantee: queues each message for the deliverer.
-- KEYS: 3 outbound list
-- ARGV: 4 layout, 5 wake channel, 6 partition, 7 number of items; per item: message id, key, message
-- Returns: per item 'queued'
-- Events: outbound_accepted; in layout acapy settle_outbound writes it, as for other writers
-- Repeats: no, a second call queues the message again
-- include: transition
local statuses = {}
for item = 1, tonumber(ARGV[7]) do
  local place = 5 + 3 * item
  redis.call('RPUSH', KEYS[3], ARGV[place + 2])
  if ARGV[4] ~= 'acapy' then note('outbound_accepted', ARGV[place], { k = ARGV[place + 1] }) end
  statuses[item] = 'queued'
end
redis.call('PUBLISH', ARGV[5], ARGV[6])
journal_append('routing')
return statuses
