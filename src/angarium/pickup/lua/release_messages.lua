#!lua
-- Guarantee: sent messages whose time is over are pending again, in their old position.
-- KEYS: 3 gateways, 4 due; per item the six of its queue
-- ARGV: 4 messages_max of one item, 5 hint channel without the gateway, 6 number of items; per
-- item: queue
-- Returns: per item {'released', count}
-- Events: returned (module pickup)
-- Repeats: safe
-- include: transition
-- include: queue
local replies, known = {}, {}
for item = 1, tonumber(ARGV[6]) do
  local queue, name = queue_at(5 + (item - 1) * QUEUE_KEYS), ARGV[6 + item]
  local released = release(queue, name, '-inf', digits(now_ms), tonumber(ARGV[4]))
  local next_due = call('ZRANGEBYSCORE', queue.sending, '-inf', '(' .. digits(HELD),
    'WITHSCORES', 'LIMIT', 0, 1)[2]
  if next_due then
    call('ZADD', KEYS[4], next_due, name)
  else
    call('ZREM', KEYS[4], name)
  end
  local gateway = released > 0 and call('HGET', queue.meta, 'gateway')
  if gateway and alive(KEYS[3], gateway, known) then
    call('PUBLISH', ARGV[5] .. gateway, 'mail\n' .. name)
  end
  replies[item] = { 'released', released }
end
journal_append('pickup')
return replies
